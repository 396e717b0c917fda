"""Pages of the CPU where there is a native interposer: it copies them, also by itself while a plan is followed."""

import os
import sys
from collections.abc import Callable

from torch_lms.capture.registry import Entry
from torch_lms.engine import NATIVE_REPEAT_S
from torch_lms.errors import StoreError, StoreFullError
from torch_lms.native import Native
from torch_lms.residency import PageId, Tier
from torch_lms.runtime.cpu import CpuExecutor
from torch_lms.runtime.executor import fill_storage
from torch_lms.stores.copies import not_read, not_written
from torch_lms.stores.disk import DiskStore
from torch_lms.timeline import Copies

_THREADS = 2
"""In each direction, as the store has them."""

_GRANTED_BYTES = 16 << 20
"""What the interposer is given of the file at a time. It is its own until the session ends."""

_PATIENCE_S = 0.05
"""After which an interrupt is looked for."""

_FOR_EVER_S = 1e6

_ENDS_EARLY, _IS_DAMAGED = -1, -2
"""As ``native/csrc/spill.h`` has them. Other failures are the system's."""


class NativeCpuExecutor(CpuExecutor):
    """RAM to disk and back. Pages that were loaded from a file come back from there in Python.

    Args:
        disk: whose file pages go to.
        native: copies them.

    Attributes:
        spill: does so.
    """

    repeat_s = NATIVE_REPEAT_S

    def __init__(self, disk: DiskStore, native: Native) -> None:
        super().__init__(disk)
        try:
            self.spill = native.Spill(disk.file.fd, _THREADS)
        except RuntimeError as error:
            disk.close()
            raise StoreError(f"no threads for the disk: {error}") from error

    @property
    def overlap_penalty(self) -> float:
        """What copies took of a core, as measured: where operations use every core, they wait for that one."""
        worked_s, lasted_s = self.spill.effort()
        return super().overlap_penalty * (min(1.0, worked_s / lasted_s) if lasted_s else 1.0)

    def start_evict(self, entry: Entry, tier: Tier, last_use: int = sys.maxsize) -> None:
        self.watch_heap()
        storage = entry()
        if storage is None:
            return
        while not self.spill.start_evict(entry.page, storage):
            self._grant(entry.nbytes)

    def start_fetch(self, entry: Entry) -> None:
        storage = entry()
        if not self.spill.has(entry.page):
            super().start_fetch(entry)
        elif storage is not None:
            fill_storage(storage, entry.nbytes)
            try:
                self.spill.start_fetch(entry.page, storage)
            except BaseException:  # an interrupt: it may be under way already
                self._settle(entry.page)
                self.release(entry)
                raise

    def discard(self, entry: Entry) -> None:
        super().discard(entry)
        self.spill.discard(entry.page)

    def landed(self) -> list[PageId]:
        return [*super().landed(), *self.spill.landed()]

    @property
    def made(self) -> int:
        return super().made + self.spill.made()

    def ended(self) -> Copies:
        self.stall_s += self.spill.take_stalled_s()
        return Copies.moved(*self.spill.take_copied()).beside(super().ended())

    def close(self) -> None:
        self.spill.close()
        super().close()

    def abandon(self) -> None:
        self.spill.abandon()
        super().abandon()

    def _finish(self, entry: Entry, undo: Callable[[Entry], None]) -> None:
        if not self.spill.has(entry.page):
            super()._finish(entry, undo)
            return
        try:
            while (failure := self.spill.finish(entry.page, _PATIENCE_S)) is None:
                pass  # an interrupt comes between two of these
            if failure:
                raise self._explained(entry, failure)
        except BaseException:
            self._settle(entry.page)
            undo(entry)
            raise

    def _settle(self, page: PageId) -> None:
        """Wait for its copy, however it turns out: nobody touches the page's memory afterwards."""
        self.spill.finish(page, _FOR_EVER_S)

    def _explained(self, entry: Entry, failure: int) -> StoreError:
        offset, is_up = self.spill.place(entry.page)
        file = self._disk.file
        error: Exception
        if failure == _ENDS_EARLY:
            error = EOFError(f"the file ends at {os.fstat(file.fd).st_size}")
        elif failure == _IS_DAMAGED:
            error = ValueError(f"damaged: {entry.nbytes} bytes at offset {offset} are not those written")
        else:
            error = OSError(failure, os.strerror(failure))
        return (not_read if is_up else not_written)(error, entry.nbytes, offset, file)

    def _grant(self, nbytes: int) -> None:
        """Have room for a page of ``nbytes``.

        Raises:
            StoreFullError: there is none.
        """
        try:
            slot = self._disk.reserve(max(nbytes, _GRANTED_BYTES))
        except StoreFullError:
            slot = self._disk.reserve(nbytes)
        self.spill.grant(slot.offset, slot.length)
