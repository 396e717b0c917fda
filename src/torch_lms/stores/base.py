"""What every lower tier can do. One contract; ``tests/contracts/test_store_contract.py`` holds every store to it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Room for one page in a store, equal to itself alone. ``offset`` and ``length`` (rounded up to the store's grain)
    are in bytes.
    """

    offset: int
    length: int
    nbytes: int


class Pending(ABC):
    """A copy under way. Until ``wait`` has ended, its buffer must not be freed or written (nor, for a read, used).

    Attributes:
        began_s, ended_s: when, by ``time.perf_counter``; known once it is done.
    """

    began_s: float
    ended_s: float

    @abstractmethod
    def wait(self) -> None:
        """Block until the copy has ended; may be called again.

        Raises:
            StoreFullError, PageLostError, StoreError: the copy failed; the other side's bytes are as they were.
        """

    @abstractmethod
    def done(self) -> bool:
        """Whether ``wait`` would return (or raise) at once."""


class Store(ABC):
    """Holds the bytes of evicted pages. Any thread may call any method."""

    name: str

    @property
    @abstractmethod
    def capacity(self) -> int:
        """The most bytes that this store may hold."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes of the slots reserved now."""

    @abstractmethod
    def reserve(self, nbytes: int) -> Slot:
        """Room for ``nbytes`` bytes (> 0).

        Raises:
            StoreFullError: there is none; says how much was asked, how much is free, and what to do.
        """

    @abstractmethod
    def write(self, slot: Slot, source: memoryview) -> Pending:
        """Start to copy ``source`` (``slot.nbytes`` contiguous bytes) into ``slot``."""

    @abstractmethod
    def read(self, slot: Slot, target: memoryview) -> Pending:
        """Start to copy ``slot`` into ``target`` (``slot.nbytes`` contiguous writable bytes)."""

    @abstractmethod
    def release(self, slot: Slot) -> None:
        """Give the room back. A copy of this slot under way is waited for first."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back to the system. Slots still reserved are gone. May be called again."""

    @abstractmethod
    def validate(self) -> None:
        """Check the books.

        Raises:
            InvariantError: they do not add up; a bug of ours.
        """
