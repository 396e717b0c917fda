"""What the native interposer is told by a session, and asks of it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import RLock, get_ident
from typing import Any

import torch

from torch_lms.capture import unobserved
from torch_lms.capture.mode import FILLED_UNSEEN, LmsMode
from torch_lms.capture.page_owner import PageOwner
from torch_lms.capture.passage import passage_of
from torch_lms.capture.registry import Entry
from torch_lms.native import Native, PageId
from torch_lms.runtime.backend import DeviceBackend
from torch_lms.runtime.fast_path import FastPath
from torch_lms.runtime.interposer import Interposer
from torch_lms.runtime.native_pages import NativePageTable, index_of
from torch_lms.runtime.pageable import READ_UNSEEN, READ_UNSEEN_WIDE


class NativeFastPath(FastPath):
    """The fast path, on which most operations are the native interposer's: it runs them, and tells of none."""

    _table: NativePageTable

    def __init__(
        self,
        native: Native,
        table: NativePageTable,
        lock: RLock,
        reap: Callable[[], None],
        notice_size: Callable[[Entry], None],
    ) -> None:
        super().__init__(table, lock, reap, notice_size)
        self._native = native
        self._telling: set[DeviceBackend] = set()

    @property
    def operations(self) -> int:
        return self.entered + self._native.entered()

    def _has_opened(self) -> None:
        backends = self._table.backends
        if not self._telling:  # pages have moved since, and may be used on other streams than before
            self._native.forget_streams([entry.page for entry in self._table.registry])
        for backend in backends:
            if backend not in self._telling:
                backend.executor.tell_streams(self._native.use_on)
                self._telling.add(backend)
        self._native.open([(index_of(backend.device), backend.engine.pager.limit) for backend in backends])

    def _has_closed(self) -> list[tuple[int, list[Entry]]]:
        """Pages born there are known by their numbers once the books are up to date."""
        self._telling.clear()
        running = self._native.close()
        self._reap()
        found = []
        for thread, pages in running:
            entries = [entry for page in pages if (entry := self._table.registry.get(page)) is not None]
            found.append((thread, entries))
        return found

    def abandon(self) -> None:
        super().abandon()
        self._native.close()

    def room_is_short(self) -> None:
        """So much was born that from now on pages may move."""
        with self._lock:
            self.close()

    def resized(self, pages: list[PageId]) -> None:
        """The program gave the storages of ``pages`` another size, by an operation of the interposer's."""
        with self._lock:
            self._reap()  # else those that were born here have no entry
            for page in pages:
                entry = self._table.registry.get(page)
                if entry is not None:
                    self._notice_size(entry)

    def ended_pinned(self, wrote: bool) -> None:
        """An operation of the interposer's ended on the calling thread, which was pinned meanwhile."""
        with self._lock:
            self._unpin(get_ident(), wrote)


class Callbacks:
    """What the native interposer calls."""

    def __init__(self, owner: PageOwner, mode: LmsMode, fast_path: NativeFastPath) -> None:
        self._owner = owner
        self.describe = passage_of
        self.run = mode.run
        self.room_is_short = fast_path.room_is_short
        self.resized = fast_path.resized
        self.ended_pinned = fast_path.ended_pinned
        self.is_out_of_memory = owner.is_out_of_memory

    def born(self, tensor: torch.Tensor) -> None:
        """An operation made ``tensor``, whose storage may have to become a page."""
        self._owner.entries_of((tensor,), is_new=True)


class NativeInterposer(Interposer):
    """A fallback below autograd, on each thread that takes part. What it cannot decide the session's mode has."""

    name = "native"

    def __init__(
        self, native: Native, owner: PageOwner, mode: LmsMode, fast_path: NativeFastPath, table: NativePageTable
    ) -> None:
        self._native = native
        self._owner = owner
        self._table = table
        self._callbacks = Callbacks(owner, mode, fast_path)

    def begin(self) -> None:
        unobserved.exclude = self._native.exclude
        sizes = {
            "min_size": self._owner.min_size,
            "filled_unseen": FILLED_UNSEEN,
            "read_unseen": READ_UNSEEN,
            "read_unseen_wide": READ_UNSEEN_WIDE,
        }
        self._native.start(self._callbacks, self._owner.kind, sizes, self._table.default.executor.has_streams)

    def end(self) -> None:
        self._native.stop()

    def attach(self) -> None:
        self._native.include(True)

    def detach(self) -> None:
        self._native.include(False)

    def unseen(self) -> AbstractContextManager[Any]:
        return excluded(self._native, True)

    def set_min_size(self, nbytes: int) -> None:
        self._native.set_min_size(nbytes)

    def watch_all(self, always: bool) -> None:
        self._native.ask_python(always)


@contextmanager
def excluded(native: Native, is_excluded: bool) -> Iterator[None]:
    """Inside, the calling thread's operations pass the interposer by, or do not."""
    before = native.exclude(is_excluded)
    try:
        yield
    finally:
        native.exclude(before)
