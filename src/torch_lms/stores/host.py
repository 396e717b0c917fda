"""Host memory as a tier for a device: page-locked slabs, made once and reused by every step (N17)."""

import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import torch

from torch_lms.errors import InvariantError, StoreError, StoreFullError
from torch_lms.stores.base import Pending, Slot, Store
from torch_lms.stores.extents import Extents
from torch_lms.stores.io_pool import IoThread
from torch_lms.units import format_bytes

_GRAIN = 4096
"""What the system locks; also keeps every page's copy aligned for the device's copy engines."""

_REFUSALS = (RuntimeError, MemoryError, StoreError)
"""Errors that say that so much cannot be page-locked."""

_MAX_SLAB = 2 << 30
"""Slabs grow with what is locked already: to lock takes some tenths of a second for each gigabyte."""

_SHARE_OF_LOCKED = 4
_FEW_PAGES = 8
"""A slab that holds fewer pages than that holds a whole number of them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Slab:
    """Page-locked memory that stands for ``[base, base + nbytes)`` of the store's linear space."""

    base: int
    memory: torch.Tensor
    # taken once: asking a tensor for its memory is watched during a session (N11)
    array: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class _Page:
    """A reserved slot's bytes, as the device and as the host see them, and the lock that a copy by the host holds."""

    tensor: torch.Tensor
    array: npt.NDArray[np.uint8]
    busy: threading.Lock = field(default_factory=threading.Lock)


class _Finished(Pending):
    began_s = ended_s = 0.0

    def wait(self) -> None:
        pass

    def done(self) -> bool:
        return True


class HostStore(Store):
    """Pages in page-locked memory. Devices copy to and from ``tensor(slot)``; ``write`` and ``read`` are plain copies.

    To be called outside of any dispatch mode: slots are views of the slabs, and making one is an op.

    Args:
        capacity: most bytes of all slabs together.
        page_lock: gives a page-locked 1-D uint8 tensor of exactly so many bytes. May raise one of ``_REFUSALS``.
        slab_bytes: the least that is asked of it at a time, but for what ``capacity`` leaves.
        works_ahead: whether a thread locks the next slab while the last one fills.
    """

    name = "host"

    def __init__(
        self,
        capacity: int,
        page_lock: Callable[[int], torch.Tensor],
        slab_bytes: int = 256 << 20,
        works_ahead: bool = False,
    ) -> None:
        self._capacity = capacity
        self._page_lock = page_lock
        self._slab_bytes = slab_bytes
        self._works_ahead = works_ahead
        self._lock = threading.Lock()
        self._is_done = threading.Condition(self._lock)
        self._worker: IoThread | None = None
        self._ahead_bytes = 0  # that the worker is locking
        self._closed = False
        self._extents = Extents(_GRAIN)
        self._slabs: list[_Slab] = []  # by base
        self._pages: dict[int, _Page] = {}  # by the offset of their slot

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._extents.used_bytes

    @property
    def locked_bytes(self) -> int:
        """Bytes of all slabs, in use or not: what the system has lost to this store."""
        with self._lock:
            return self._extents.total_bytes

    def reserve(self, nbytes: int) -> Slot:
        with self._lock:
            if self._closed:
                raise StoreError("the host store is closed")
            offset = self._extents.take(nbytes)
            while offset is None:
                if self._ahead_bytes:
                    self._is_done.wait()
                else:
                    self._add_slab(self._extents.rounded(nbytes))
                offset = self._extents.take(nbytes)
            self._work_ahead(self._extents.rounded(nbytes))
            self._pages[offset] = self._view(offset, nbytes)
            return Slot(offset, self._extents.rounded(nbytes), nbytes)

    def tensor(self, slot: Slot) -> torch.Tensor:
        """The slot's bytes: 1-D, uint8, page-locked. Drop it before the slot is released."""
        return self._page(slot).tensor

    def write(self, slot: Slot, source: memoryview) -> Pending:
        page = self._page(slot)
        with page.busy:
            np.copyto(page.array, np.frombuffer(source, np.uint8, slot.nbytes))
        return _Finished()

    def read(self, slot: Slot, target: memoryview) -> Pending:
        page = self._page(slot)
        with page.busy:
            np.copyto(np.frombuffer(target, np.uint8, slot.nbytes), page.array)
        return _Finished()

    def release(self, slot: Slot) -> None:
        with self._lock:
            if self._closed:
                return
            page = self._pages.pop(slot.offset, None)
        if page is None:
            raise _not_reserved(slot)
        with page.busy, self._lock:
            if not self._closed:
                self._extents.give(slot.offset, slot.length)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            worker = self._worker
        if worker is not None:
            worker.join()
        with self._lock:
            self._pages.clear()
            self._slabs.clear()
            self._extents = Extents(_GRAIN)

    def validate(self) -> None:
        with self._lock:
            self._extents.validate()
            slabs = sum(slab.nbytes for slab in self._slabs)
            if not self._extents.total_bytes == slabs <= self._capacity:
                raise InvariantError(f"{slabs} bytes in slabs, {self._extents.total_bytes} in the books")

    def _page(self, slot: Slot) -> _Page:
        page = self._pages.get(slot.offset)
        if page is None:
            raise _not_reserved(slot)
        return page

    def _view(self, offset: int, nbytes: int) -> _Page:
        slab = self._slabs[bisect_right(self._slabs, offset, key=attrgetter("base")) - 1]
        begin = offset - slab.base
        return _Page(slab.memory[begin : begin + nbytes], slab.array[begin : begin + nbytes])

    def _add_slab(self, needed: int) -> None:
        self._drop_slabs(needed)
        if self._room() < needed:
            raise self._full(needed, "raise host_limit, or let pages go to disk")
        self._append(self._locked(self._slab_size(needed), needed))

    def _append(self, memory: torch.Tensor) -> None:
        # a gap: no page may lie across two slabs
        base = self._extents.grow(memory.nbytes, gap=_GRAIN)
        array = torch._C.TensorBase.numpy(memory)  # which is never patched: slabs are no pages
        self._slabs.append(_Slab(base, memory, array))

    def _slab_size(self, needed: int) -> int:
        """Of the next slab, for pages of ``needed`` bytes."""
        nbytes = max(self._slab_bytes, min(self._extents.total_bytes // _SHARE_OF_LOCKED, _MAX_SLAB))
        if needed * _FEW_PAGES > nbytes:
            nbytes = max(nbytes // needed, 1) * needed
        return min(nbytes // _GRAIN * _GRAIN, self._room())

    def _room(self) -> int:
        return (self._capacity - self._extents.total_bytes - self._ahead_bytes) // _GRAIN * _GRAIN

    # -- ahead -------------------------------------------------------------------------------------------------------

    def _work_ahead(self, needed: int) -> None:
        """Start to lock the next slab, if less than half of one is left."""
        if not self._works_ahead or self._ahead_bytes:
            return
        wanted = self._slab_size(needed)
        unused = self._extents.total_bytes - self._extents.used_bytes
        if wanted < needed or unused * 2 >= wanted:
            return
        worker = IoThread(partial(self._lock_ahead, wanted), "torch-lms-page-lock")
        try:
            worker.start()
        except RuntimeError:  # no threads left: slabs are locked when they are needed
            self._works_ahead = False
            return
        self._worker = worker
        self._ahead_bytes = wanted

    def _lock_ahead(self, nbytes: int) -> None:
        memory = None
        try:
            memory = self._page_lock(nbytes)
        except _REFUSALS:
            self._works_ahead = False  # whoever needs it will be told why
        finally:  # whatever happened: others may wait for this
            with self._lock:
                self._ahead_bytes = 0
                if memory is not None and not self._closed:
                    self._append(memory)
                self._is_done.notify_all()

    def _locked(self, wanted: int, needed: int) -> torch.Tensor:
        try:
            return self._page_lock(wanted)
        except _REFUSALS as error:
            if wanted > needed:
                return self._locked(needed, needed)
            refusal = f"the system refused to page-lock {format_bytes(needed)} more ({error})"
            raise self._full(needed, f"{refusal}: lower host_limit, or let pages go to disk") from error

    def _drop_slabs(self, needed: int) -> None:
        """Drop as many unused slabs as make room for ``needed`` bytes in one piece; none if all are not enough."""
        missing = needed - self._room()
        unused = [slab for slab in self._slabs if self._extents.is_free(slab.base, slab.nbytes)]
        if sum(slab.nbytes for slab in unused) < missing:
            return
        for slab in unused:
            if missing > 0:
                self._extents.retire(slab.base)
                self._slabs.remove(slab)
                missing -= slab.nbytes

    def _full(self, needed: int, remedy: str) -> StoreFullError:
        used, locked = format_bytes(self._extents.used_bytes), format_bytes(self._extents.total_bytes)
        return StoreFullError(
            f"no room for {format_bytes(needed)} in host memory: {used} used of {locked} page-locked, at most "
            f"{format_bytes(self._capacity)}; {remedy}"
        )


def _not_reserved(slot: Slot) -> StoreError:
    return StoreError(f"{slot} is not reserved in the host store, or the store is closed")
