"""Performs the pager's actions on storages. One executor for each kind of device."""

import ctypes
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from torch_lms.capture.registry import STORAGE, Entry, storage_nbytes
from torch_lms.machine import HostCost
from torch_lms.residency import PageId, Tier
from torch_lms.runtime.clock import Clock, Mark
from torch_lms.stores.base import Store
from torch_lms.stores.loaded_file import LoadedFile
from torch_lms.timeline import Copies, Span

CAN_SWAP = hasattr(torch.UntypedStorage, "_swap_data_ptr_")
"""Whether this PyTorch (from 2.12 on) can exchange the memory of two storages: then also storages that refuse to be
resized, as those from `torch.load`, can be paged (N12)."""

_view_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_memory.restype = ctypes.py_object
_view_memory.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_WRITABLE = 0x200


class _Capacities(Mapping[Tier, int]):
    """The most bytes of each of ``stores``, as they are when somebody asks."""

    def __init__(self, stores: Mapping[Tier, Store]) -> None:
        self._stores = stores

    def __getitem__(self, tier: Tier) -> int:
        return self._stores[tier].capacity

    def __iter__(self) -> Iterator[Tier]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)


class Executor(ABC):
    """Moves pages of one device.

    A page under way has its storage held by the executor, so it cannot die on the way. A page whose storage died
    before its turn came is skipped: the pager will hear of the death.

    Attributes:
        tiers: most bytes of each lower tier, nearest first.
        clock: tells when the program's work is done.
        stall_s: seconds in which the host waited for copies, or the program's stream.
        has_streams: whether operations run on streams, so that ``use`` has something to order.
        repeat_s: see ``engine.Backend``. A host that runs ahead of its device loses nothing.
        host_cost: what LMS costs a host that runs ahead; None where the processor computes itself.
    """

    has_streams = True
    repeat_s = 0.0
    host_cost: HostCost | None = None

    def __init__(self, stores: Mapping[Tier, Store], clock: Clock) -> None:
        self.tiers, self.clock = _Capacities(stores), clock
        self.stall_s = 0.0
        self._spans: list[Span] = []

    @property
    def overlap_penalty(self) -> float:
        """Share of a copy's time that the program loses though it does not wait for it."""
        return 0.0

    @property
    def disk_bytes_per_s(self) -> tuple[float, float]:
        """What a disk behind another tier has reached so far, written and read; 0 before it was used."""
        return 0.0, 0.0

    def mark(self, tick: int) -> Mark:
        """Now, which is ``tick`` counted in operations: all that used a page before that tick has been asked for."""
        return self.clock.mark()

    @abstractmethod
    def forget_marks(self) -> None:
        """Pages were used without a tick since the last mark."""

    def found_in_file(self, entry: Entry, file: LoadedFile, offset: int) -> None:
        """The page was loaded from ``file``, and is there from ``offset`` on: that is its lower copy."""
        raise NotImplementedError

    @abstractmethod
    def start_evict(self, entry: Entry, tier: Tier, last_use: int = sys.maxsize) -> None:
        """Start to copy the page down. ``last_use``: the tick of its last use, at most the present one.

        Raises:
            StoreError: the tier has no room; nothing changed.
        """

    @abstractmethod
    def finish_evict(self, entry: Entry) -> None:
        """Make the lower copy count.

        Raises:
            StoreError: it failed; the device's copy is as it was.
        """

    @abstractmethod
    def release(self, entry: Entry) -> None:
        """Free the page's device bytes."""

    def drop(self, entry: Entry) -> None:
        """Free the page's device bytes although there is no lower copy."""
        self.release(entry)

    def recompute(self, entry: Entry, inputs: list[Entry], make: Callable[[], None]) -> None:
        """Have ``make`` give the page device bytes again, from those of ``inputs``.

        Raises:
            RuntimeError: the device has no room.
        """
        self.use(inputs)
        make()

    @abstractmethod
    def start_fetch(self, entry: Entry) -> None:
        """Allocate device bytes and start to copy the page up.

        Raises:
            RuntimeError: the device has no room (see ``is_out_of_memory``); nothing changed.
        """

    @abstractmethod
    def finish_fetch(self, entry: Entry) -> None:
        """Make the page usable.

        Raises:
            StoreError: it could not be read; it is evicted as before.
        """

    @abstractmethod
    def discard(self, entry: Entry) -> None:
        """Give up the lower copy."""

    @abstractmethod
    def landed(self) -> list[PageId]:
        """Pages whose copy has ended, though nobody waited for it: finishing these waits for nothing."""

    @property
    def made(self) -> int:
        """How many copies were made since ``ended`` was last asked."""
        return len(self._spans)

    def ended(self) -> Copies:
        """Copies that ended since this was last asked, by the time when they did."""
        spans, self._spans = sorted(self._spans, key=lambda span: span.end_s), []
        return Copies.of(spans)

    @abstractmethod
    def use(self, entries: Iterable[Entry]) -> None:
        """An operation is about to use ``entries``, which are resident, on the current stream."""

    def born(self, entry: Entry, stream: int) -> None:
        """The memory of ``entry`` was allocated for the stream of that number."""
        return

    def tell_streams(self, told: Callable[[PageId, int], None]) -> None:
        """From now on tell of each stream on which a page may be used as it is, by its number; of those so far, now."""
        return

    def streams_of(self, page: PageId) -> list[int]:
        """The numbers of the streams on which the page may be used as it is."""
        return []

    @abstractmethod
    def adopt(self, entry: Entry) -> None:
        """The program had ``entry`` before it was a page: its memory may have been allocated on any stream."""

    @abstractmethod
    def grows(self, new_bytes: int, resident_bytes: int, limit: int) -> None:
        """An operation is about to make pages of ``new_bytes``, while pages occupy ``resident_bytes`` of ``limit``."""

    @abstractmethod
    def forget(self, entry: Entry) -> None:
        """The storage of ``entry`` died, and its lower copy, if there was one, is given up."""

    @abstractmethod
    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` says that the device's memory ran out."""

    @abstractmethod
    def drain(self) -> None:
        """Wait until the device has done all that it was asked."""

    @abstractmethod
    def trim(self) -> None:
        """Give memory that was freed, but is cached, back to the device."""

    @abstractmethod
    def close(self) -> None:
        """Give up all lower copies and whatever else is held."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: let go of everything without touching what the parent still uses."""

    def _wait(self, wait: Callable[[], None]) -> None:
        started = time.perf_counter()
        try:
            wait()
        finally:
            self.stall_s += time.perf_counter() - started


def empty_storage(storage: torch.UntypedStorage) -> None:
    """Free the memory of ``storage``."""
    if STORAGE.resizable(storage):
        STORAGE.resize_(storage, 0)
    else:
        STORAGE._swap_data_ptr_(storage, torch.UntypedStorage(0, device=storage.device))


def fill_storage(storage: torch.UntypedStorage, nbytes: int) -> None:
    """Give the emptied ``storage`` new memory of ``nbytes`` bytes, uninitialized."""
    if STORAGE.resizable(storage):
        STORAGE.resize_(storage, nbytes)
    else:
        STORAGE._swap_data_ptr_(storage, torch.UntypedStorage(nbytes, device=storage.device))


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """All bytes of ``storage``, as a uint8 tensor."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def memory_of(owner: torch.UntypedStorage | torch.Tensor) -> memoryview:
    """The bytes of a storage, or of a contiguous uint8 tensor, on the host. Does not keep its owner alive."""
    if isinstance(owner, torch.Tensor):
        view: memoryview = _view_memory(torch._C.TensorBase.data_ptr(owner), owner.numel(), _WRITABLE)
    else:
        view = _view_memory(STORAGE.data_ptr(owner), storage_nbytes(owner), _WRITABLE)
    return view
