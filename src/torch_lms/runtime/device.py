"""What the executor needs of a device with streams: small enough that a test can play the device (N5)."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import torch

Stream = Any
"""What a device calls a stream. The same stream is always the same object."""

StreamEvent = Any


class StreamDevice(ABC):
    """Streams, events, memory. Nothing here blocks the host but ``synchronize``, ``allocate`` and ``drain``.

    Memory belongs to the stream that it was allocated for: once freed, it is handed out again to what is queued on that
    stream from then on, while other streams may still be using it.
    """

    @abstractmethod
    def current_stream(self) -> Stream:
        """The stream on which the caller's operations run."""

    def id_of(self, stream: Stream) -> int:
        """PyTorch's number for a stream that is or was a current one."""
        raise NotImplementedError

    def stream_of(self, number: int) -> Stream:
        """The stream of that number, which has been a current one."""
        raise NotImplementedError

    @abstractmethod
    def new_stream(self) -> Stream:
        """A stream of our own, for the session's life."""

    @abstractmethod
    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Inside, operations run on ``stream``, and memory is allocated for it."""

    @abstractmethod
    def record(self, stream: Stream) -> StreamEvent:
        """An event after all that was queued on ``stream`` so far."""

    @abstractmethod
    def seconds_between(self, first: StreamEvent, second: StreamEvent) -> float:
        """How much later ``second`` was than ``first``; both are past."""

    @abstractmethod
    def wait(self, stream: Stream, event: StreamEvent) -> None:
        """What is queued on ``stream`` from now on runs after ``event``."""

    @abstractmethod
    def synchronize(self, event: StreamEvent) -> None:
        """Block the host until ``event``."""

    @abstractmethod
    def reached(self, event: StreamEvent) -> bool:
        """Whether ``event`` is past."""

    @abstractmethod
    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queue a copy of bytes on ``stream``. Keeps neither tensor alive."""

    @abstractmethod
    def allocate(self, storage: torch.UntypedStorage, nbytes: int, stream: Stream) -> None:
        """Give the emptied ``storage`` memory of ``stream``. Whoever had it before may still be queued there.

        Raises:
            RuntimeError: there is none (see ``is_out_of_memory``).
        """

    @abstractmethod
    def free(self, storage: torch.UntypedStorage) -> None:
        """Give the memory of ``storage`` back to the stream that it was allocated for; nothing if it has none."""

    @abstractmethod
    def keep_for(self, storage: torch.UntypedStorage, stream: Stream) -> None:
        """However ``storage`` ends, its present memory is not handed out before ``stream`` is through with it."""

    @abstractmethod
    def bytes_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """All bytes of ``storage``, as a uint8 tensor."""

    @abstractmethod
    def page_lock(self, nbytes: int) -> torch.Tensor:
        """A page-locked uint8 tensor on the host.

        Raises:
            StoreFullError: the system refuses.
        """

    @abstractmethod
    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` says that the device's memory ran out."""

    @abstractmethod
    def drain(self) -> None:
        """Block the host until all streams are done, those of others too."""

    @abstractmethod
    def trim(self) -> None:
        """Give cached free memory back to the device."""
