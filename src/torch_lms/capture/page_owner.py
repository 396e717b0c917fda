"""Whoever owns the pages, as capture sees it: what it is told, and what it is asked."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torch_lms.capture.call import Record, Recorded
from torch_lms.capture.registry import Entry
from torch_lms.capture.tensors import no_function_modes, storage_of, tensors_among


class Use(ABC):
    """Something that needs pages for a while. ``str`` of it tells the user what that was."""

    name: str
    """Of the operator, or what else it is."""

    is_regular: bool = True
    """Whether it is part of what the program does in every step, wherever its pages are."""

    call: Recorded | None = None
    """The use itself, captured so that it can be repeated, if somebody asked for that."""

    @property
    def device(self) -> torch.device | None:
        """Where it puts what it creates; None if it creates nothing."""
        return None

    @property
    def is_repeatable(self) -> bool:
        """Whether doing it again would give the same bits."""
        return False

    def capture_call(self, record: Record) -> None:
        """Set ``call``, if it can be repeated."""
        return

    def written(self, entries: list[Entry]) -> list[Entry]:
        """Those of its pages, ``entries``, that it may write."""
        return entries


@dataclass(frozen=True)
class RawUse(Use):
    """Something that is no operator."""

    name: str
    is_regular: bool = True

    def __str__(self) -> str:
        return self.name


class FastPath(Protocol):
    """How an operation passes while nothing has to move (N3).

    Attributes:
        is_open: whether every page is on the device and none is about to be evicted.
    """

    is_open: bool

    def enter(self, entries: list[Entry]) -> bool:
        """An operation on ``entries`` begins on the fast path. False if that has been closed meanwhile: the operation
        must ``begin``.
        """

    def exit(self, entries: list[Entry], wrote: bool) -> None:
        """The operation ended, or failed, and perhaps ``wrote`` to its pages."""

    def was_split(self, name: str, entries: list[Entry]) -> None:
        """An operation of that name on ``entries`` is a part of a larger one."""


class PageOwner(ABC):
    """Sees to it that pages are there while they are used. Any thread may call it.

    Attributes:
        active: whether there is anything to do; a mode left behind on some thread is inert once this is False.
        interrupted: whether an interrupt waits to be delivered.
        lock: who holds it lets no page come or go.
        min_size: bytes from which on a storage may be a page.
        kind: of the devices whose storages are pages: "cuda" for one.
        fast_path: for operations that move nothing.
    """

    active: bool
    interrupted: bool
    lock: threading.RLock
    min_size: int
    kind: str
    fast_path: FastPath

    # -- pages -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        """The page of ``storage``, if it is one."""

    @abstractmethod
    def entry_of(
        self, storage: torch.UntypedStorage, tensor: torch.Tensor | None, is_new: bool = False
    ) -> Entry | None:
        """The page of ``storage``, which becomes one now if it should be.

        Args:
            tensor: one that shows it.
            is_new: whether an operation on the current stream has just allocated it.
        """

    @abstractmethod
    def known(self, storage: torch.UntypedStorage) -> Entry | None:
        """The page of ``storage``, if it is one, or was computed in pieces."""

    @abstractmethod
    def register(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> None:
        """``storage``, which ``tensor`` shows, has just been given memory, and becomes a page."""

    @abstractmethod
    def may_leave(self, entry: Entry) -> bool:
        """Whether nobody uses the memory of ``entry`` unseen, now or later."""

    @abstractmethod
    def in_pieces(self) -> None:
        """The bytes of some tensor are in pages of other tensors (N27)."""

    @abstractmethod
    def owns(self, storage: torch.UntypedStorage, file: object = None, offset: int = 0) -> None:
        """Nobody else has the memory of ``storage``, even if it refuses to be resized.

        Args:
            storage: any.
            file: that has its bytes from ``offset`` on, as ``open_file`` gave it.
            offset: see ``file``.
        """

    @abstractmethod
    def open_file(self, path: str) -> object:
        """A file that tensors are loaded from, as long as one of them lives; None if pages cannot be read from it."""

    @abstractmethod
    def may_be_page(self, dtype: torch.dtype, nbytes: int) -> bool:
        """Whether a storage of ``nbytes``, of a tensor of ``dtype`` that an operation makes, may be a page."""

    def entries_of(self, values: Iterable[Any], is_new: bool = False) -> list[Entry]:
        """The pages of the tensors among ``values``, each once. ``is_new``: see ``entry_of``."""
        with no_function_modes():
            found = {self.entry_of(storage_of(t), t, is_new): None for t in tensors_among(values)}
        return [entry for entry in found if entry is not None]

    @abstractmethod
    def retyped(self, tensor: torch.Tensor) -> None:
        """``tensor`` shows a storage that other tensors show as another type, and that may have grown for it."""

    @abstractmethod
    def invalidate(self, entries: list[Entry]) -> None:
        """``entries`` are about to lose their content."""

    @abstractmethod
    def export(self, entries: list[Entry], reason: str) -> None:
        """The memory of ``entries`` is used unseen from now on: they stay on the device, for ``reason``."""

    # -- operations --------------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, op: Use, entries: list[Entry], new_bytes: int) -> None:
        """``op`` is about to run on ``entries``: make them resident, and room for ``new_bytes``.

        Raises:
            WorkingSetError: the device cannot hold them.
        """

    @abstractmethod
    def end(self, entries: list[Entry], written: list[Entry]) -> None:
        """It ended, or failed; ``written`` may have changed."""

    @abstractmethod
    def tight(self, entries: list[Entry], more: int = 0) -> bool:
        """Whether the sizes of results must be known beforehand: little room is left, or all might not be enough.

        Args:
            entries: pages that the operation uses.
            more: bytes that it may create.
        """

    @abstractmethod
    def is_at_brim(self, entries: list[Entry], more: int = 0) -> bool:
        """Whether so little room is left on the device of ``entries`` that what an operation creates must be known.

        Args:
            entries: pages that it uses.
            more: bytes that it may create.
        """

    @abstractmethod
    def room_for_one_op(self, entries: list[Entry]) -> int:
        """Bytes that one operation may touch without exceeding the limit by itself."""

    @abstractmethod
    def room_left(self, entries: list[Entry]) -> int:
        """Bytes of the limit that are left beside all pages on the device of ``entries``, while all are there."""

    @abstractmethod
    def free_bytes(self, device: torch.device) -> int:
        """That can be allocated on ``device`` now, beside the pages."""

    @abstractmethod
    def room_to_search(self, entries: list[Entry], new_bytes: int) -> int:
        """Bytes to make free beside ``new_bytes`` for an operation that chooses its algorithm by what is free, or takes
        nobody knows how much (N28).
        """

    @abstractmethod
    def searching(self, entries: list[Entry]) -> AbstractContextManager[None]:
        """Inside, such an operation runs: what it takes beside its pages is left free from now on."""

    @abstractmethod
    def hold(self, entries: list[Entry], is_over: Callable[[], bool]) -> None:
        """``entries`` are used until ``is_over()``, though their operation has returned."""

    @abstractmethod
    def deliver(self) -> None:
        """Raise the interrupt that waits: nothing is half done now."""

    # -- out of memory -----------------------------------------------------------------------------------------------

    @abstractmethod
    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` says that a device's memory ran out."""

    @abstractmethod
    def recover(self, entries: list[Entry], new_bytes: int) -> None:
        """Memory ran out inside an operation: free all that can be freed (N9)."""

    @abstractmethod
    def does_not_fit(self, op: str, entries: list[Entry], new_bytes: int, error: BaseException) -> Exception:
        """The error that says that the device cannot hold what ``op`` describes."""

    # -- raw accesses ------------------------------------------------------------------------------------------------

    @abstractmethod
    def lend(self, entries: list[Entry], borrower: object) -> None:
        """``borrower`` shares the memory of ``entries``, which stay on the device until it dies."""

    @abstractmethod
    def lending_addresses(self, used: list[Entry]) -> AbstractContextManager[None]:
        """Inside, an operator runs on ``used``: a page whose address this thread asks for stays until the end alone."""

    @abstractmethod
    def all_held(self) -> AbstractContextManager[None]:
        """Inside, every page is on the device, whatever the limit."""

    @abstractmethod
    def unseen(self) -> AbstractContextManager[None]:
        """Inside, this thread's operations pass unseen, and their results are no pages."""

    @abstractmethod
    def keeping(self, may_write: bool) -> AbstractContextManager[None]:
        """Inside, what this thread makes stays on the device, and whole. ``may_write``: it may be written unseen."""

    @abstractmethod
    def resized(self, entry: Entry, is_freed: bool = False) -> None:
        """The user gave the storage of ``entry`` another size. ``is_freed``: none, also if it was away."""
