"""Every road to a tensor's bytes or address, found by introspection, under the harshest paging (N11, N12).

    python -m tests.roads                    # all of it
    python -m tests.roads --match dlpack     # cases whose name contains "dlpack"
    python -m tests.roads --match "(away)"   # one state of the tensor

A *road* is a callable that takes a tensor or its storage. Each is called in each *state* that a tensor can be in when
a session meets it: on stock PyTorch, and with LMS at ``limit=0, min_size=1``. Then all memory is evicted and poisoned.
What the call returned, what the tensor holds, and what is written through the one and read through the other must be
equal.
"""
