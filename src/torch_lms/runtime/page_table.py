"""Which storage is a page of which device, in a session."""

from collections.abc import Callable
from functools import cached_property
from threading import RLock

import torch

from torch_lms.capture.registry import Entry, Registry, storage_nbytes
from torch_lms.engine import Engine
from torch_lms.errors import InvariantError
from torch_lms.runtime.backend import DeviceBackend
from torch_lms.runtime.pageable import why_unpageable
from torch_lms.runtime.recompute import Recomputer

Group = tuple[DeviceBackend, list[Entry]]
"""A device, and pages of it."""


def has_any_other_size(entries: list[Entry]) -> bool:
    """Whether the program gave one of their storages another size."""
    for entry in entries:
        storage = entry()
        if storage is not None and storage_nbytes(storage) != entry.nbytes:
            return True
    return False


class PageTable:
    """All pages of all devices of one kind.

    A storage that is born on the fast path is young: its bytes are in the ledger, but its engine hears of it only if it
    outlives the fast path, or is asked for otherwise. Most die before.

    Whoever calls holds the session's lock, but for ``find``, ``group`` and ``current_device``.

    Args:
        kind: of the devices, "cuda" for one.
        lock: the session's.
        new_backend: makes the backend of a device.
    """

    def __init__(self, kind: str, lock: RLock, new_backend: Callable[[torch.device], DeviceBackend]) -> None:
        self.registry = self._new_registry()
        self.find = self.registry.find
        self._young: dict[Entry, None] = {}  # in the order of their births
        self._kind = kind
        self._is_cpu = kind == "cpu"
        self._lock = lock
        self._new_backend = new_backend
        self._backends: dict[torch.device, DeviceBackend] = {}
        self._by_engine: dict[Engine, DeviceBackend] = {}

    def _new_registry(self) -> Registry:
        return Registry()

    def new_recomputer(self) -> Recomputer:
        """For the pages of one more device."""
        return Recomputer()

    # -- devices -----------------------------------------------------------------------------------------------------

    @cached_property
    def default(self) -> DeviceBackend:
        """Of the device that was the current one when this was first asked."""
        return self.backend_of(self.current_device())

    @property
    def backends(self) -> list[DeviceBackend]:
        """The devices so far."""
        return list(self._backends.values())

    def current_device(self) -> torch.device:
        """Of the program."""
        if self._is_cpu:
            return torch.device("cpu")
        return torch.device(self._kind, torch.accelerator.current_device_index())

    def backend_of(self, device: torch.device) -> DeviceBackend:
        """The backend of ``device``, which is made when it is first asked for."""
        if device.index is None and not self._is_cpu:
            device = self.current_device()
        backend = self._backends.get(device)
        if backend is None:
            with self._lock:
                backend = self._new_backend(device)
                self._backends[device] = backend
                self._by_engine[backend.engine] = backend
        return backend

    def home(self, entry: Entry) -> DeviceBackend:
        """The backend of the device of ``entry``."""
        return self.default if self._is_cpu else self._by_engine[entry.engine]

    def group(self, entries: list[Entry]) -> list[Group]:
        """``entries`` by their devices; the current device alone if there are none."""
        if self._is_cpu or not entries:
            return [(self.default, entries)]
        groups: dict[Engine, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(entry.engine, []).append(entry)
        return [(self._by_engine[engine], its) for engine, its in groups.items()]

    # -- births, deaths and sizes ------------------------------------------------------------------------------------

    def add(self, storage: torch.UntypedStorage, is_owned: bool, is_found: bool) -> Entry:
        """``storage`` becomes a page. ``is_owned``: see ``why_unpageable``; ``is_found``: see ``Engine.created``."""
        backend = self.default if self._is_cpu else self.backend_of(storage.device)
        entry = self.registry.add(storage, backend.engine)
        backend.add(entry, why_unpageable(storage, is_owned), is_found=is_found)
        return entry

    def add_young(self, storage: torch.UntypedStorage) -> Entry:
        """``storage`` is born on the fast path."""
        backend = self.default if self._is_cpu else self.backend_of(storage.device)
        entry = self.registry.add(storage, backend.engine)
        self._young[entry] = None
        backend.engine.pager.book.ledger.add(entry.nbytes)
        if backend.executor.has_streams:
            backend.executor.use((entry,))
        return entry

    def reap(self, keep_young: bool = False) -> None:
        """Have the engines hear of all that died, and of all young pages.

        Args:
            keep_young: of young ones only the ledgers hear, while nobody needs to know them one by one.
        """
        if self.registry.deaths:
            self.count_dead()
        if keep_young:
            return
        young, self._young = self._young, {}
        for entry in young:
            entry.engine.pager.book.ledger.remove(entry.nbytes)
            storage = entry()
            self.home(entry).add(entry, "" if storage is None else why_unpageable(storage, is_owned=False))

    def count_dead(self) -> None:
        """Forget the pages whose storages died. Most young ones die before their engine hears of them."""
        for entry in self.registry.dead():
            if entry in self._young:
                del self._young[entry]
                entry.engine.pager.book.ledger.remove(entry.nbytes)
                self.home(entry).executor.forget(entry)
            else:
                self.remove(entry)

    def live_bytes(self, engine: Engine) -> int:
        """Of all pages on its device, young ones included, while all are there."""
        return engine.pager.book.ledger.device

    def remove(self, entry: Entry) -> None:
        """``entry`` is no page of its device any more."""
        if entry.page in entry.engine.pager.book:
            self.home(entry).remove(entry)

    def drop(self, entry: Entry) -> None:
        """``entry`` is no page any more, though its storage lives."""
        self.registry.drop(entry)
        self.remove(entry)

    def notice_size(self, entry: Entry, is_freed: bool = False) -> None:
        """Look whether the program gave the storage of ``entry`` another size. All deaths must be counted.

        Args:
            entry: a page.
            is_freed: it gave it size 0, which is that of a page that is away, too.
        """
        storage = entry()
        page = entry.engine.pager.book.get(entry.page)
        if storage is None or page is None:
            return
        nbytes = storage_nbytes(storage)
        if nbytes == entry.nbytes or not (is_freed or page.state.on_device):
            return
        if nbytes == 0:  # freed by hand, as FSDP does: a new page if it is filled again
            self.drop(entry)
        else:
            entry.nbytes = nbytes
            self.home(entry).resize(entry)

    def validate(self) -> None:
        """Check the books of all devices, and the storages against them.

        Raises:
            InvariantError: something does not hold.
        """
        for backend in self.backends:
            backend.engine.pager.validate()
        for entry in self.registry:
            storage = entry()
            if storage is None:
                continue
            state = entry.engine.pager.book[entry.page].state
            expected = entry.nbytes if state.on_device else 0
            if storage_nbytes(storage) != expected:
                raise InvariantError(
                    f"page {entry.page} is {state.value}, its storage holds {storage_nbytes(storage)} bytes"
                )
