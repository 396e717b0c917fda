"""PyTorch's own test files, from a source tree of PyTorch, plain and under LMS: what does only LMS fail?

    python -m tests.upstream FOLDER                                   # the default files, in an hour
    python -m tests.upstream FOLDER --quick                           # a part of them, in ten minutes
    python -m tests.upstream FOLDER test_autograd --match TestAutograd.test_hooks

Each test runs plain first. If it passes, it runs at each setting of LMS, with LMS on around the test method. A test
that then fails, or compares values with other bits, runs again plain and under an empty dispatch mode. What comes out
there alike is not LMS's fault.
"""
