"""What the C library does with freed memory (N19). Does nothing where it is not glibc."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_THRESHOLD_BYTES = 4 << 20
"""By itself glibc raises it to 32 MiB as blocks are freed. Smaller blocks then stay in its heaps, free but counted
against RLIMIT_DATA: 350 of 720 MB at a step of the demo, which failed for it. Below 4 MiB nothing more is gained there.
"""


def _libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
    except (OSError, AttributeError):
        return None
    return libc


_glibc = _libc()


def return_freed_memory() -> None:
    """From now on blocks of 4 MiB and more go back to the system when they are freed.

    Called at the first eviction, not before: every such allocation then faults its memory in anew.
    """
    if _glibc is not None:
        _glibc.mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
        _glibc.mallopt(_M_TRIM_THRESHOLD, _THRESHOLD_BYTES)


def trim() -> None:
    """Give all free memory of the heap back to the system now."""
    if _glibc is not None:
        _glibc.malloc_trim(0)
