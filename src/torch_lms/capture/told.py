"""What all of capture tells the runtime."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torch_lms.capture.call import Call
from torch_lms.capture.registry import Entry


class Use(ABC):
    """What needs pages for a while. ``str`` of it tells the user what that was."""

    name: str
    """Of the operator, or what else it is."""

    is_regular: bool = True
    """Whether it is part of what the program does in every step, wherever its pages are."""

    call: Call | None = None
    """Itself, written down, if somebody asked for it."""

    @property
    def device(self) -> torch.device | None:
        """Where it puts what it creates; None if it creates nothing."""
        return None

    @property
    def is_repeatable(self) -> bool:
        """Whether doing it again would give the same bits."""
        return False

    def write_down(self, writes_of: Callable[[Entry], int]) -> None:
        """Set ``call``, if it can be repeated. ``writes_of``: how often a page was written so far."""
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


class Told(ABC):
    """Whoever sees to it that pages are there while they are used. Any thread may call it."""

    @abstractmethod
    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        """The page of ``storage``, if it is one."""

    @abstractmethod
    def begin(self, op: Use, entries: list[Entry], new_bytes: int) -> None:
        """``op`` is about to run on ``entries``: make them resident, and room for ``new_bytes``."""

    @abstractmethod
    def end(self, entries: list[Entry], written: list[Entry]) -> None:
        """It ended, or failed; ``written`` may have changed."""

    @abstractmethod
    def spoil(self, entries: list[Entry]) -> None:
        """``entries`` are about to lose their content."""

    @abstractmethod
    def export(self, entries: list[Entry], reason: str) -> None:
        """The memory of ``entries`` is used unseen from now on: they stay on the device, because of ``reason``."""

    @abstractmethod
    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` says that a device's memory ran out."""

    @abstractmethod
    def does_not_fit(self, op: str, entries: list[Entry], new_bytes: int, error: BaseException) -> Exception:
        """The error that says that the device cannot hold what ``op`` describes."""

    def require(self, op: Use, entries: list[Entry], new_bytes: int) -> None:
        """``begin``, with a device that cannot hold ``entries`` explained."""
        try:
            self.begin(op, entries, new_bytes)
        except (RuntimeError, MemoryError) as error:
            if not self.is_out_of_memory(error):
                raise
            raise self.does_not_fit(str(op), entries, new_bytes, error) from error
