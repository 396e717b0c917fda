"""The disk as a tier: one spill file per store, written and read by a few threads of ours (N18)."""

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from torch_lms.errors import StoreError
from torch_lms.stores.base import Pending, Slot, Store
from torch_lms.stores.copies import Copy, Read, Write, chunk_count
from torch_lms.stores.extents import Extents
from torch_lms.stores.io_pool import IoPool
from torch_lms.stores.loaded_file import LoadedFile, LoadedPart, ReadLoaded
from torch_lms.stores.spill_dir import remove_leftovers
from torch_lms.stores.spill_file import ALIGNMENT, FULL_ERRNOS, SpillFile
from torch_lms.units import format_bytes

_FIRST_SLAB_BYTES, _SLAB_BYTES = 1 << 20, 64 << 20
"""A file doubles, and grows by the latter once it is as long."""

_MEASURED_EVERY_S = 0.001
"""How often it is asked how much is free."""


@dataclass(slots=True, eq=False)
class _Page:
    """What the store knows of a reserved slot."""

    checksums: list[int | None]
    copies: list[Copy] = field(default_factory=list)

    def under_way(self) -> list[Copy]:
        self.copies = [copy for copy in self.copies if not copy.done()]
        return list(self.copies)


class DiskStore(Store):
    """Pages in one file of ``directory`` that nobody sees and that is gone when the process is, however it dies.

    The file grows by allocated slabs, so that ``reserve`` finds a full disk while the page is still elsewhere. Copies
    of one slot are performed in the order of the calls. What is read is checked against a checksum taken when it was
    written.

    Args:
        directory: where the file lies.
        capacity: most bytes of the file; None: what is free there, less a margin for everybody else.
        threads: chunks being copied at once in each direction: what is needed now must not stand behind what is written
            in good time. Two keep a disk of 2 GB/s busy; each costs a stack and a buffer, which a limit of the
            operating system may count.
        direct: use direct I/O if the file system has it. Without, the page cache keeps a second copy of every page.

    Raises:
        UsageError: ``directory`` is missing, not a directory, or not writable.
    """

    name = "disk"

    def __init__(
        self, directory: str | os.PathLike[str], capacity: int | None = None, threads: int = 2, direct: bool = True
    ) -> None:
        self.directory = Path(directory).absolute()
        self.file = SpillFile(self.directory, direct)
        remove_leftovers(self.directory)
        self.direct = self.file.direct
        self._is_measured = capacity is None
        self._measured_at = time.monotonic()
        self._capacity = _default_capacity(self.file.free_bytes()) if capacity is None else capacity
        self._lock = threading.Lock()
        self._closed = False
        self._extents = Extents(ALIGNMENT)
        self._pages: dict[Slot, _Page] = {}
        started: list[IoPool] = []
        try:
            self._writers = IoPool(self.file, threads, "out")
            started.append(self._writers)
            self._readers = IoPool(self.file, threads, "in")
        except BaseException:
            for pool in started:
                pool.close()
            self.file.close()
            raise

    @property
    def capacity(self) -> int:
        if self._is_measured and time.monotonic() >= self._measured_at + _MEASURED_EVERY_S:
            self._capacity = self.file.size + _default_capacity(self.file.free_bytes())
            self._measured_at = time.monotonic()
        return self._capacity

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._extents.used_bytes

    @property
    def bytes_per_s(self) -> tuple[float, float]:
        """What was reached so far while pages were being written, and read; 0 before any."""
        return self._writers.bytes_per_s, self._readers.bytes_per_s

    def reserve(self, nbytes: int) -> Slot:
        with self._lock:
            self._check_open()
            offset = self._extents.take(nbytes)
            if offset is None:
                self._grow(nbytes)
                offset = self._extents.take(nbytes)
            if offset is None:
                used, capacity = format_bytes(self._extents.used_bytes), format_bytes(self.capacity)
                hole = format_bytes(self._extents.largest_free)
                raise self.file.full(nbytes, f"it holds {used} of its capacity of {capacity} (largest hole {hole})")
            slot = Slot(offset, self._extents.rounded(nbytes), nbytes)
            self._pages[slot] = _Page([None] * chunk_count(nbytes))
            return slot

    def adopt(self, file: LoadedFile, offset: int, nbytes: int) -> Slot:
        """Where a page is that was loaded from ``file``: it is read there, and must not be written. Takes no room."""
        with self._lock:
            self._check_open()
            part = LoadedPart(offset, 0, nbytes, file)
            self._pages[part] = _Page([])
            return part

    def write(self, slot: Slot, source: memoryview) -> Pending:
        memory = np.frombuffer(source, np.uint8, slot.nbytes)
        with self._lock:
            page = self._page(slot)
            # a new list: reads under way still check against the old one
            page.checksums = [None] * len(page.checksums)
            return self._start(page, Write(slot, memory, page.checksums, page.under_way()), self._writers)

    def read(self, slot: Slot, target: memoryview) -> Pending:
        memory = np.frombuffer(target, np.uint8, slot.nbytes)
        with self._lock:
            page = self._page(slot)
            copy: Copy
            if isinstance(slot, LoadedPart):
                copy = ReadLoaded(slot, memory)
            else:
                copy = Read(slot, memory, page.checksums, page.under_way())
            return self._start(page, copy, self._readers)

    def settle(self, slot: Slot) -> None:
        """Wait until no copy of ``slot`` is under way, however they turn out."""
        with self._lock:
            under_way = self._page(slot).under_way()
        for copy in under_way:
            copy.settle()

    def release(self, slot: Slot) -> None:
        with self._lock:
            if self._closed:
                return
            under_way = self._page(slot).under_way()
            del self._pages[slot]
        for copy in under_way:
            copy.settle()
        with self._lock:
            if slot.length and not self._closed:
                self._extents.give(slot.offset, slot.length)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._forget()
        self._writers.close()
        self._readers.close()
        self.file.close()

    def abandon(self) -> None:
        """Forget everything, in a forked child: the threads stayed with the parent, a held lock never opens (N13)."""
        self._lock = threading.Lock()
        if not self._closed:
            self._forget()
            self.file.close()

    def validate(self) -> None:
        with self._lock:
            self._extents.validate()

    def _start(self, page: _Page, copy: Copy, pool: IoPool) -> Copy:
        # under the lock: of copies that wait for each other, the earlier must stand further ahead in its queue
        page.copies.append(copy)
        pool.submit(copy)
        return copy

    def _grow(self, nbytes: int) -> None:
        """Make the file longer: by a slab, or where that is too much by ``nbytes``, or not at all."""
        needed = self._extents.rounded(nbytes)
        room = self.capacity // ALIGNMENT * ALIGNMENT - self.file.size
        slab = min(max(self.file.size, _FIRST_SLAB_BYTES), _SLAB_BYTES)
        for wanted in (max(needed, slab), needed):
            # no more than the capacity leaves: with a hole at the file's end, that may be enough
            length = min(wanted, room)
            if length > 0 and self._extended(length):
                self._extents.grow(length)
                return

    def _extended(self, length: int) -> bool:
        try:
            self.file.extend(length)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                return False
            raise StoreError(f"cannot extend the spill file in {self.directory}: {error.strerror}") from error
        return True

    def _page(self, slot: Slot) -> _Page:
        self._check_open()
        page = self._pages.get(slot)
        if page is None:
            raise StoreError(f"{slot} is not reserved in the spill file in {self.directory}")
        return page

    def _forget(self) -> None:
        self._closed = True
        self._pages.clear()
        self._extents = Extents(ALIGNMENT)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the spill file in {self.directory} is closed")


def _default_capacity(free: int) -> int:
    """All but 2 %, at most 1 GiB: a disk filled to the last byte takes more down than this process."""
    return free - min(1 << 30, free // 50)
