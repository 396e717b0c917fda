"""What the C library does with freed memory (N19). Does nothing where it is not glibc."""

import ctypes
import resource
from pathlib import Path

import torch

from torch_lms.runtime.limits import auto_limit

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MADV_DONTNEED = 4
_THRESHOLD_BYTES = 1 << 20
"""By itself glibc raises it to 32 MiB as blocks are freed. Smaller blocks then stay in its heaps, free but counted
against RLIMIT_DATA: 350 of 720 MB at a step of the demo, which failed for it; with voxels of 3 mm and 4 MiB, 50 of 569.
"""

_FREE_SHARE = 0.4
"""Of the limit: free memory that may stay in the heaps. With less, the same peak is reached at a higher limit, but more
memory is faulted in anew than is moved less."""

_FREE_BYTES = 32 << 20
"""So much may stay in any case: under a small limit, looks at the heap would take longer than what is done in between.
"""

_LOOKS = 4
"""While as much is made as may stay free."""

_CPU = torch.device("cpu")
_PAGE_BYTES = resource.getpagesize()


def _libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
        libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    except (OSError, AttributeError):
        return None
    return libc


_glibc = _libc()


class Heap:
    """Keeps what was freed, but stays with the process, within a share of the limit (or 32 MiB), and while memory
    is not scarce.

    To give all of it back at once, and always, would have each operation fault its memory in anew.
    """

    def __init__(self) -> None:
        self._made_bytes = 0
        self._other_bytes: int | None = None
        self._spare_bytes = self._spent_bytes = 0
        if is_address_space_limited():
            give_back_early()

    @staticmethod
    def most_unseen(limit: int) -> int:
        """So many bytes may be allocated under ``limit`` until it has to be told."""
        return _most_free(limit) // _LOOKS

    def grows(self, nbytes: int, held_bytes: int, limit: int) -> None:
        """``nbytes`` are about to be allocated, while pages occupy ``held_bytes`` of ``limit``."""
        self._made_bytes += nbytes
        if _glibc is None or self._made_bytes < self.most_unseen(limit):
            return
        self._spent_bytes += self._made_bytes
        self._made_bytes = 0
        if self._other_bytes is None or self._is_too_much(_resident_bytes() - self._other_bytes - limit, limit):
            trim()
            self._other_bytes = _resident_bytes() - held_bytes

    def _is_too_much(self, beyond_bytes: int, limit: int) -> bool:
        """Whether the process had better not hold ``beyond_bytes`` more than the limit, until the next look."""
        most_free = _most_free(limit)
        if beyond_bytes > most_free:
            return True
        if beyond_bytes > 0 and self._spent_bytes * _LOOKS >= self._spare_bytes:  # to ask takes a millisecond
            self._spare_bytes, self._spent_bytes = auto_limit(_CPU).nbytes, 0
        return beyond_bytes > 0 and self._spare_bytes * _LOOKS < most_free


def _most_free(limit: int) -> int:
    """Bytes that may stay in the heaps under ``limit``."""
    return max(_FREE_BYTES, int(limit * _FREE_SHARE))


def give_back_early() -> None:
    """Have the C library keep small blocks alone when they are freed: larger ones go back to the system at once."""
    if _glibc is not None:
        _glibc.mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
        _glibc.mallopt(_M_TRIM_THRESHOLD, _THRESHOLD_BYTES)


def trim() -> None:
    """Give all free memory of the heap back to the system now."""
    if _glibc is not None:
        _glibc.malloc_trim(0)


def unload(memory: memoryview) -> None:
    """Give back the memory behind a part of a private mapping of a file, of which nothing is needed any more. What
    shares a page of the system with other parts stays.
    """
    if _glibc is None:
        return
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = -(-address // _PAGE_BYTES) * _PAGE_BYTES
    last = (address + memory.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    if last > first:
        _glibc.madvise(first, last - first, _MADV_DONTNEED)


def is_address_space_limited() -> bool:
    """Whether the kernel counts what the heap keeps against this process (RLIMIT_DATA, RLIMIT_AS)."""
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS))
    return any(limit != resource.RLIM_INFINITY for limit in limits)


def _resident_bytes() -> int:
    """Of the process, without what it shares with files and other processes."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * _PAGE_BYTES
