"""One open file on disk: grow it, write and read it, directly where the file system allows."""

import errno
import fcntl
import mmap
import os
import resource
import secrets
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torch_lms.errors import StoreFullError
from torch_lms.stores.spill_dir import ANOTHER_DIRECTORY, open_spill_file
from torch_lms.units import format_bytes

Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 4096
"""Offsets, lengths and addresses that direct I/O takes on any disk: no logical block in use is larger."""

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says when a file cannot grow: the disk, the quota, or ``RLIMIT_FSIZE`` is reached."""

_NO_FALLOCATE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


def aligned_buffer(nbytes: int) -> Bytes:
    """Zeroed memory that begins on a page of the system, as direct I/O demands.

    An anonymous mapping is shared by default, and that is wanted: with private memory, a fork during direct I/O can
    give the bytes that arrive to the wrong process (open(2), under O_DIRECT).
    """
    return np.frombuffer(mmap.mmap(-1, nbytes), dtype=np.uint8)


def read_into(fd: int, chunk: Bytes, offset: int) -> None:
    """Fill ``chunk`` from an open file.

    Raises:
        EOFError: the file ends before.
    """
    done = 0
    while done < chunk.nbytes:
        count = os.preadv(fd, [chunk.data[done:]], offset + done)
        if count == 0:
            raise EOFError(f"the file ends at {offset + done}")
        done += count


class SpillFile:
    """A file without a name in ``directory``. ``direct``: use direct I/O if a block written so comes back.

    Raises:
        UsageError, StoreError: as ``open_spill_file``.
    """

    def __init__(self, directory: Path, direct: bool) -> None:
        self.directory = directory
        self.fd = open_spill_file(directory)
        self.size = 0
        self.direct = direct and self._enable_direct_io()

    def extend(self, length: int) -> None:
        """Grow by ``length`` bytes, with real blocks behind them where the file system can promise them.

        Raises:
            OSError: it cannot grow; its size is as it was.
        """
        try:
            os.posix_fallocate(self.fd, self.size, length)
        except OSError as error:
            # a refused allocation may have got part of the way
            os.ftruncate(self.fd, self.size)
            if error.errno not in _NO_FALLOCATE:
                raise
            os.ftruncate(self.fd, self.size + length)
        self.size += length

    def write(self, chunk: Bytes, offset: int) -> None:
        done = 0
        while done < chunk.nbytes:
            done += os.pwrite(self.fd, chunk.data[done:], offset + done)

    def read(self, chunk: Bytes, offset: int) -> None:
        """Fill ``chunk``.

        Raises:
            EOFError: the file ends before.
        """
        read_into(self.fd, chunk, offset)

    def free_bytes(self) -> int:
        """Bytes that this user may still allocate on the file system."""
        status = os.fstatvfs(self.fd)
        return status.f_bavail * status.f_frsize

    def full(self, nbytes: int, used: str) -> StoreFullError:
        """The error for ``nbytes`` that found no room; ``used`` says how the file stands."""
        most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if most != resource.RLIM_INFINITY and self.size + nbytes > most:
            why = f"a file may have {format_bytes(most)} here (RLIMIT_FSIZE); raise that with ulimit -f"
        else:
            free = format_bytes(self.free_bytes())
            why = f"its file system has {free} free; free some space there, or {ANOTHER_DIRECTORY}"
        return StoreFullError(
            f"no room for {format_bytes(nbytes)} in the spill file in {self.directory}: {used}, and {why}"
        )

    def close(self) -> None:
        os.close(self.fd)

    def _enable_direct_io(self) -> bool:
        # some file systems take the flag and fail later: only a block that comes back tells
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            works = self._returns_a_block()
        except OSError:
            works = False
        if not works:
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags)
        os.ftruncate(self.fd, 0)
        return works

    def _returns_a_block(self) -> bool:
        sent, received = aligned_buffer(ALIGNMENT), aligned_buffer(ALIGNMENT)
        sent[:] = np.frombuffer(secrets.token_bytes(ALIGNMENT), np.uint8)
        self.write(sent, 0)
        self.read(received, 0)
        return bool(np.array_equal(sent, received))
