"""Without an accelerator: RAM is the device, and pages go to the disk."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch

from torch_lms.capture.registry import Entry
from torch_lms.engine import REPEAT_S
from torch_lms.errors import StoreError
from torch_lms.residency import PageId, Tier
from torch_lms.runtime.clock import Clock
from torch_lms.runtime.executor import Executor, empty_storage, fill_storage, memory_of
from torch_lms.runtime.malloc import Heap, is_address_space_limited, trim, unload
from torch_lms.stores.base import Pending, Slot
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.loaded_file import LoadedFile
from torch_lms.timeline import Lane, Span

_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")
_FAILED_IN_ONEDNN = ("could not create a primitive", "could not execute a primitive", "could not create a memory")
"""It says no more, whatever went wrong. Where the kernel refuses memory, that is why."""


@dataclass(slots=True)
class _Copy:
    """A page's place on disk, or in the file that it was loaded from. ``pending`` and ``storage`` are set while it is
    under way.
    """

    slot: Slot
    pending: Pending | None = None
    lane: Lane = Lane.D2H
    storage: torch.UntypedStorage | None = None


class CpuExecutor(Executor):
    """RAM to disk and back.

    Args:
        disk: where pages go.
    """

    has_streams = False
    repeat_s = REPEAT_S

    def __init__(self, disk: DiskStore) -> None:
        super().__init__({Tier.DISK: disk}, Clock())
        self._disk = disk
        self._copies: dict[PageId, _Copy] = {}
        self._under_way: dict[PageId, _Copy] = {}
        self._mapped: set[PageId] = set()  # on memory that shows a file
        self._heap = Heap() if is_address_space_limited() else None  # else nothing is changed before a page leaves

    @property
    def overlap_penalty(self) -> float:
        """All of it where operations use every core: one that copies keeps the others waiting at the end of each."""
        return float(torch.get_num_threads() >= len(os.sched_getaffinity(0)))

    def forget_marks(self) -> None:
        """There are none: what the program asked for is done."""

    def found_in_file(self, entry: Entry, file: LoadedFile, offset: int) -> None:
        self._copies[entry.page] = _Copy(self._disk.adopt(file, offset, entry.nbytes))
        self._mapped.add(entry.page)

    def start_evict(self, entry: Entry, tier: Tier, last_use: int = sys.maxsize) -> None:
        self.watch_heap()
        storage = entry()
        if storage is None:
            return
        copy = self._copies[entry.page] = _Copy(self._disk.reserve(entry.nbytes), storage=storage)
        copy.pending = self._disk.write(copy.slot, memory_of(storage))
        self._under_way[entry.page] = copy

    def finish_evict(self, entry: Entry) -> None:
        self._finish(entry, self.discard)

    def release(self, entry: Entry) -> None:
        storage = entry()
        if storage is None:
            return
        if entry.page in self._mapped:  # which stays mapped as long as another part of the file is in use
            self._mapped.remove(entry.page)
            unload(memory_of(storage))
        empty_storage(storage)

    def start_fetch(self, entry: Entry) -> None:
        copy, storage = self._copies.get(entry.page), entry()
        if copy is None or storage is None:
            return
        fill_storage(storage, entry.nbytes)
        try:
            copy.storage, copy.lane = storage, Lane.H2D
            self._under_way[entry.page] = copy
            copy.pending = self._disk.read(copy.slot, memory_of(storage))
        except BaseException:  # it may be under way already
            self._disk.settle(copy.slot)
            self._under_way.pop(entry.page, None)
            copy.pending = copy.storage = None
            self.release(entry)
            raise

    def finish_fetch(self, entry: Entry) -> None:
        self._finish(entry, self.release)

    def discard(self, entry: Entry) -> None:
        copy = self._copies.pop(entry.page, None)
        self._under_way.pop(entry.page, None)
        if copy is not None:
            self._disk.release(copy.slot)

    def landed(self) -> list[PageId]:
        return [page for page, copy in self._under_way.items() if copy.pending is not None and copy.pending.done()]

    def use(self, entries: Iterable[Entry]) -> None:
        """Nothing to order: there is one stream, the program."""

    def adopt(self, entry: Entry) -> None:
        """Its memory is no stream's."""

    def watch_heap(self) -> None:
        """Pages leave from now on."""
        if self._heap is None:
            self._heap = Heap()

    def grows(self, new_bytes: int, resident_bytes: int, limit: int) -> None:
        if self._heap is not None:
            self._heap.grows(new_bytes, resident_bytes, limit)

    def forget(self, entry: Entry) -> None:
        self._mapped.discard(entry.page)

    def is_out_of_memory(self, error: BaseException) -> bool:
        words = str(error)
        if isinstance(error, MemoryError) or any(sign in words for sign in _OUT_OF_MEMORY):
            return True
        is_of_onednn = any(sign in words for sign in _FAILED_IN_ONEDNN) and "descriptor" not in words
        return is_of_onednn and is_address_space_limited()

    def drain(self) -> None:
        """Nothing is left to do when the program goes on."""

    def trim(self) -> None:
        trim()

    def close(self) -> None:
        self._disk.close()
        self._copies.clear()
        self._under_way.clear()

    def abandon(self) -> None:
        self._copies.clear()
        self._disk.abandon()

    def _finish(self, entry: Entry, undo: Callable[[Entry], None]) -> None:
        """Wait for the page's copy. Whatever comes, an interrupt too, nobody touches its memory afterwards."""
        copy = self._copies.get(entry.page)
        if copy is None or copy.pending is None:
            return
        pending = copy.pending
        try:
            self._wait(pending.wait)
            name = "evict" if copy.lane is Lane.D2H else "fetch"
            self._spans.append(Span(copy.lane, name, pending.began_s, pending.ended_s, entry.nbytes, entry.page))
        except BaseException as error:
            if not isinstance(error, StoreError):
                with suppress(StoreError):
                    pending.wait()
            undo(entry)
            raise
        finally:
            self._under_way.pop(entry.page, None)
            copy.pending = copy.storage = None
