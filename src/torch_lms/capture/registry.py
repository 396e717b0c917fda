"""Which storage is which page (N2)."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from operator import attrgetter
from typing import Any, cast

import torch

from torch_lms.engine import Engine
from torch_lms.residency import PageId

STORAGE: Any = torch._C.StorageBase
"""The class below ``UntypedStorage``: its methods are never patched."""

storage_nbytes = STORAGE.nbytes
"""The size of a storage as it stands, unpatched: 0 while it is evicted."""


def has_at_least(storage: torch.UntypedStorage, nbytes: int) -> bool:
    """Whether it holds so many bytes as it stands. A symbolic size is not asked: the answer would be a guard of what
    is traced.
    """
    size = storage_nbytes(storage)
    return type(size) is int and size >= nbytes


class Entry(weakref.ref[torch.UntypedStorage]):
    """A storage that is a page, referenced weakly: call it to get the storage, or None once that is dead.

    Attributes:
        page: its number.
        nbytes: its size, also while it is evicted.
        engine: of its device.
        key: identity of the storage's Python object.
        is_exported: whether somebody uses its memory unseen.
    """

    __slots__ = ("engine", "is_exported", "key", "nbytes", "page")
    __hash__ = object.__hash__  # by itself, not by a referent that may be dead
    __eq__ = object.__eq__
    is_exported: bool
    key: int
    nbytes: int
    page: PageId
    engine: Engine


_page_of: Callable[[Entry], PageId] = attrgetter("page")


def pages_of(entries: Iterable[Entry]) -> tuple[PageId, ...]:
    """Their numbers."""
    return tuple(map(_page_of, entries))


class Registry:
    """All storages that are pages, found by the identity of their Python object.

    PyTorch keeps a storage's Python object as long as the storage lives, whoever holds it: a view, autograd, the
    engine. So a weak reference to it is exact, and asking whether it still refers to the storage in hand tells a new
    storage from a dead one at the same address.

    Attributes:
        deaths: pages whose storages died, and that ``dead`` has not given yet.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self.deaths: deque[Entry] = deque()
        self._ids = count()

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        """The page of ``storage``, if it is one."""
        entry = self._entries.get(id(storage))
        return entry if entry is not None and entry() is storage else None

    def add(self, storage: torch.UntypedStorage, engine: Engine | None) -> Entry:
        """``storage`` becomes a page of the device of ``engine``; None where pages are only numbered."""
        # The callback may run at any moment, on any thread, with our lock held: it only appends.
        entry = Entry(storage, self.deaths.append)
        entry.page = next(self._ids)
        entry.nbytes = storage_nbytes(storage)
        entry.engine = cast(Engine, engine)
        entry.key = id(storage)
        entry.is_exported = False
        self._entries[entry.key] = entry
        return entry

    def drop(self, entry: Entry) -> None:
        """``entry`` is no page any more."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def dead(self) -> Iterator[Entry]:
        """Pages whose storages died since the last call."""
        while self.deaths:
            entry = self.deaths.popleft()
            self.drop(entry)
            yield entry
