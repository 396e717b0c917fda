"""Every operator, module and optimizer that PyTorch tests by its own lists, under the harshest paging.

    python -m tests.sweep                    # all of it
    python -m tests.sweep --match softmax    # cases whose name contains "softmax"

Each case is run three times from the same seeds: plain, under a dispatch mode that only looks (``Watcher``), and with
LMS at ``limit=0, min_size=1``, where every floating tensor leaves the device after every operation.
"""
