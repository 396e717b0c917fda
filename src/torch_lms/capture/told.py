"""What all of capture tells the runtime."""

from abc import ABC, abstractmethod

import torch

from torch_lms.capture.registry import Entry


class Told(ABC):
    """Whoever sees to it that pages are there while they are used. Any thread may call it."""

    @abstractmethod
    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        """The page of ``storage``, if it is one."""

    @abstractmethod
    def begin(self, op: object, entries: list[Entry], new_bytes: int) -> None:
        """``op`` is about to run on ``entries``: make them resident, and room for ``new_bytes``."""

    @abstractmethod
    def end(self, entries: list[Entry], written: list[Entry]) -> None:
        """It ended, or failed; ``written`` may have changed."""

    @abstractmethod
    def export(self, entries: list[Entry], reason: str) -> None:
        """The memory of ``entries`` is used unseen from now on: they stay on the device, because of ``reason``."""

    @abstractmethod
    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` says that a device's memory ran out."""

    @abstractmethod
    def does_not_fit(self, op: str, entries: list[Entry], new_bytes: int, error: BaseException) -> Exception:
        """The error that says that the device cannot hold what ``op`` describes."""

    def require(self, op: object, entries: list[Entry], new_bytes: int) -> None:
        """``begin``, with a device that cannot hold ``entries`` explained."""
        try:
            self.begin(op, entries, new_bytes)
        except (RuntimeError, MemoryError) as error:
            if not self.is_out_of_memory(error):
                raise
            raise self.does_not_fit(str(op), entries, new_bytes, error) from error
