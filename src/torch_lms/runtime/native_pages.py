"""The table of pages where the native interposer has it: births and deaths on the fast path are known there first."""

from collections.abc import Callable, Iterator
from threading import RLock

import torch

from torch_lms.capture.registry import Entry, Registry, storage_nbytes
from torch_lms.engine import Engine
from torch_lms.native import Native
from torch_lms.policy import Birth
from torch_lms.residency import PageId
from torch_lms.runtime.backend import DeviceBackend
from torch_lms.runtime.native_recompute import NativeRecomputer
from torch_lms.runtime.page_table import PageTable
from torch_lms.runtime.pageable import why_unpageable


class NativeRegistry(Registry):
    """All storages that are pages, by the native interposer's numbers.

    Args:
        native: the interposer.
        engine_of: the engine of the device of a storage.
        born: told of a young page that Python hears of, and of the stream of its memory.
    """

    def __init__(
        self,
        native: Native,
        engine_of: Callable[[torch.UntypedStorage], Engine],
        born: Callable[[Entry, int], None],
    ) -> None:
        super().__init__()
        self._native = native
        self._born = born
        self._engine_of = engine_of
        self._by_number: dict[PageId, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._by_number.values()))

    def __len__(self) -> int:
        return self._native.count()

    def __getitem__(self, page: PageId) -> Entry:
        return self._by_number[page]

    def get(self, page: PageId) -> Entry | None:
        """The page of that number, if Python knows of it."""
        return self._by_number.get(page)

    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        page = self._native.find(storage)
        if page < 0:
            return None
        entry = self._by_number.get(page)
        if entry is None:  # born on the fast path: nobody has asked for it yet
            stream = self._native.name(page)
            entry = self.enter(page, storage)
            self._born(entry, stream)
        return entry

    def add(self, storage: torch.UntypedStorage, engine: Engine | None, is_young: bool = False) -> Entry:
        return self.enter(self._native.add(storage, is_young), storage)

    def enter(self, page: PageId, storage: torch.UntypedStorage) -> Entry:
        """``storage`` is the page of that number."""
        entry = Entry(storage)
        entry.page = page
        entry.nbytes = self._native.nbytes(page)  # which may be away
        entry.engine = self._engine_of(storage)
        entry.key = id(storage)
        entry.is_exported = False
        return self._by_number.setdefault(page, entry)

    def forget(self, page: PageId) -> Entry | None:
        """Its storage died. Its entry, if it had one."""
        return self._by_number.pop(page, None)

    def drop(self, entry: Entry) -> None:
        if self._by_number.pop(entry.page, None) is not None:
            self._native.drop(entry.page)

    def dead(self) -> Iterator[Entry]:
        for page in self._native.take_deaths():
            entry = self._by_number.pop(page, None)
            if entry is not None:
                yield entry


class NativePageTable(PageTable):
    """All pages of all devices of one kind, most of which the native interposer finds by itself.

    The bytes of young pages are counted there, and in the ledgers only at the ends of steps.
    """

    registry: NativeRegistry

    def __init__(
        self, kind: str, lock: RLock, new_backend: Callable[[torch.device], DeviceBackend], native: Native
    ) -> None:
        self._native = native
        self._young_bytes: dict[DeviceBackend, int] = {}
        super().__init__(kind, lock, new_backend)

    def _new_registry(self) -> NativeRegistry:
        return NativeRegistry(self._native, lambda storage: self.backend_of(storage.device).engine, self._born)

    def new_recomputer(self) -> NativeRecomputer:
        return NativeRecomputer(self._native, self.registry.get)

    def _born(self, entry: Entry, stream: int) -> None:
        """``entry`` was born on the fast path, its memory for ``stream``: whatever stream is the current one now."""
        executor = self.home(entry).executor
        if executor.has_streams:
            executor.born(entry, stream)

    def add_young(self, storage: torch.UntypedStorage) -> Entry:
        entry = self.registry.add(storage, None, is_young=True)
        if self.home(entry).executor.has_streams:
            self.home(entry).executor.use((entry,))
        return entry

    def reap(self, keep_young: bool = False) -> None:
        self.count_dead()
        self._count_young(keep_young)
        if keep_young:
            return
        for page, storage, stream in self._native.take_young():
            if not storage_nbytes(storage):  # freed by hand since: a new page if it is filled again
                self._native.drop(page)
                continue
            entry = self.registry.get(page) or self.registry.enter(page, storage)
            self._born(entry, stream)
            self.home(entry).add(entry, why_unpageable(storage, is_owned=False))

    def _count_young(self, are_there: bool) -> None:
        """Have the ledgers hear of the most that was there, and of the bytes of young pages, if there are any now."""
        for backend in self.backends:
            ledger, device = backend.engine.pager.book.ledger, index_of(backend.device)
            ledger.remove(self._young_bytes.pop(backend, 0))
            if are_there:
                self._young_bytes[backend] = self._native.live_bytes(device) - ledger.live
                ledger.add(self._young_bytes[backend])
            peak_bytes = self._native.take_peak(device)
            ledger.note_peaks(peak_bytes, peak_bytes)

    def born_as_planned(self, births: list[tuple[PageId, torch.UntypedStorage, int, int]]) -> list[Birth]:
        """Pages that were born while a plan was followed: their numbers, storages, streams, and numbers in the plan."""
        told = []
        for page, storage, stream, number in births:
            entry = self.know(page, storage, stream)
            told.append(Birth(page, number, entry.nbytes, why_unpageable(storage, is_owned=False)))
        return told

    def know(self, page: PageId, storage: torch.UntypedStorage, stream: int) -> Entry:
        """The page of that number, which was born natively, its memory for ``stream``."""
        entry = self.registry.get(page)
        if entry is None:
            entry = self.registry.enter(page, storage)
            self._born(entry, stream)
        self.home(entry).know(entry)
        return entry

    def count_dead(self) -> None:
        for entry in self.registry.dead():
            if entry.page in entry.engine.pager.book:
                self.remove(entry)
            else:  # young: no engine has heard of it
                self.home(entry).executor.forget(entry)

    def live_bytes(self, engine: Engine) -> int:
        return self._native.live_bytes(index_of(self._by_engine[engine].device))

    def notice_size(self, entry: Entry, is_freed: bool = False) -> None:
        super().notice_size(entry, is_freed)
        self._native.resize(entry.page, entry.nbytes)


def index_of(device: torch.device) -> int:
    """As the interposer numbers devices: -1 is the CPU."""
    return -1 if device.index is None else device.index
