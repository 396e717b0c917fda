"""An accelerator with streams: behind its memory comes page-locked host memory, behind that the disk (N5)."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from torch_lms.capture.registry import Entry
from torch_lms.errors import StoreError, StoreFullError
from torch_lms.residency import PageId, Tier
from torch_lms.runtime.executor import Executor, empty_storage, fill_storage, memory_of
from torch_lms.stores.base import Pending, Slot
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.host import HostStore

_STAGING_BYTES = 32 << 20

Stream = Any
StreamEvent = Any


class StreamDevice(ABC):
    """The little that the executor needs of a device. Streams are compared by equality and must be hashable."""

    @abstractmethod
    def current_stream(self) -> Stream:
        """The stream on which the caller's operations run."""

    @abstractmethod
    def new_stream(self) -> Stream:
        """A stream of our own, for the session's life."""

    @abstractmethod
    def record(self, stream: Stream) -> StreamEvent:
        """An event after all that was queued on ``stream`` so far."""

    @abstractmethod
    def wait(self, stream: Stream, event: StreamEvent) -> None:
        """What is queued on ``stream`` from now on runs after ``event``. Does not block the host."""

    @abstractmethod
    def synchronize(self, event: StreamEvent) -> None:
        """Block the host until ``event``."""

    @abstractmethod
    def reached(self, event: StreamEvent) -> bool:
        """Whether ``event`` is past."""

    @abstractmethod
    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queue a copy of bytes on ``stream``. Does not block the host."""

    @abstractmethod
    def bytes_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """All bytes of ``storage``, as a uint8 tensor."""

    @abstractmethod
    def page_lock(self, nbytes: int) -> torch.Tensor:
        """A page-locked uint8 tensor on the host."""

    @abstractmethod
    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error`` says that the device's memory ran out."""

    @abstractmethod
    def trim(self) -> None:
        """Give cached free memory back to the device."""


@dataclass(slots=True)
class _Copy:
    """A page's lower copy.

    Attributes:
        tier, slots: where it is: one slot in host memory, or several on disk.
        done: passes when the copy into host memory is complete.
        writes: those to the disk that are under way.
        storage: held while the page is on its way down.
    """

    tier: Tier
    slots: list[Slot]
    done: StreamEvent | None = None
    writes: list[Pending] = field(default_factory=list)
    storage: torch.UntypedStorage | None = None


@dataclass(slots=True)
class _Use:
    """Which streams a resident page was used on, and what they must wait for.

    Attributes:
        home: the stream on which its memory was allocated, or on which it was first seen.
        streams: all streams that used it, ``home`` included.
        arrived: passes when a fetch is complete; None if there was none.
    """

    home: Stream
    streams: set[Stream]
    arrived: StreamEvent | None = None


class StreamExecutor(Executor):
    """Device to page-locked host memory to disk, on one stream for each direction.

    Args:
        device: the device.
        host: page-locked host memory.
        disk: behind it.
    """

    def __init__(self, device: StreamDevice, host: HostStore, disk: DiskStore) -> None:
        super().__init__({Tier.HOST: host.capacity, Tier.DISK: disk.capacity})
        self._device, self._host, self._disk = device, host, disk
        self._out, self._in = device.new_stream(), device.new_stream()
        self._copies: dict[PageId, _Copy] = {}
        self._uses: dict[PageId, _Use] = {}
        self._retired: deque[tuple[StreamEvent, Slot]] = deque()
        self._staging: _Staging | None = None

    # -- down --------------------------------------------------------------------------------------------------------

    def start_evict(self, entry: Entry, tier: Tier) -> None:
        storage = entry()
        if storage is None:
            return
        copy = _Copy(tier, self._reserve(tier, entry.nbytes), storage=storage)
        use = self._use_of(entry)
        for stream in use.streams:
            self._device.wait(self._out, self._device.record(stream))
        source = self._device.bytes_of(storage)
        if tier is Tier.HOST:
            self._device.copy(self._host.tensor(copy.slots[0]), source, self._out)
            copy.done = self._device.record(self._out)
        else:
            copy.writes = self._stage().down(source, copy.slots, self._disk, self._out)
        self._copies[entry.page] = copy

    def finish_evict(self, entry: Entry) -> None:
        """Every stream that used the page waits for its copy, so that neither a write nor whoever gets its memory next
        can overtake that. The host waits only for the disk.
        """
        copy = self._copies.get(entry.page)
        if copy is None:
            return
        try:
            for write in copy.writes:
                self._wait(write.wait)
        except BaseException:
            self.discard(entry)
            raise
        finally:
            copy.writes, copy.storage = [], None
        if copy.done is not None:
            for stream in self._use_of(entry).streams:
                self._device.wait(stream, copy.done)

    def release(self, entry: Entry) -> None:
        """The memory goes back to the stream that it was allocated on: that one waits for the others."""
        use, storage = self._use_of(entry), entry()
        del self._uses[entry.page]
        if storage is None:
            return
        for stream in use.streams - {use.home}:
            self._device.wait(use.home, self._device.record(stream))
        empty_storage(storage)

    # -- up ----------------------------------------------------------------------------------------------------------

    def start_fetch(self, entry: Entry) -> None:
        copy, storage = self._copies.get(entry.page), entry()
        if copy is None or storage is None:
            return
        fill_storage(storage, entry.nbytes)
        current = self._device.current_stream()
        # The allocator may hand out memory whose last user is still queued on this stream.
        self._device.wait(self._in, self._device.record(current))
        target = self._device.bytes_of(storage)
        try:
            if copy.tier is Tier.HOST:
                if copy.done is not None:
                    self._device.wait(self._in, copy.done)
                self._device.copy(target, self._host.tensor(copy.slots[0]), self._in)
            else:
                self._stage().up(target, copy.slots, self._disk, self._in)
        except BaseException:
            self._device.synchronize(self._device.record(self._in))
            empty_storage(storage)
            raise
        self._uses[entry.page] = _Use(current, set(), self._device.record(self._in))

    def finish_fetch(self, entry: Entry) -> None:
        self.use((entry,))

    def use(self, entries: Iterable[Entry]) -> None:
        current = self._device.current_stream()
        for entry in entries:
            use = self._uses.get(entry.page)
            if use is None:
                use = self._uses[entry.page] = _Use(current, set())
            if current not in use.streams:
                if use.arrived is not None:
                    self._device.wait(current, use.arrived)
                use.streams.add(current)

    def _use_of(self, entry: Entry) -> _Use:
        if entry.page not in self._uses:
            self.use((entry,))
        return self._uses[entry.page]

    # -- lower tiers -------------------------------------------------------------------------------------------------

    def discard(self, entry: Entry) -> None:
        """Host memory is used again only when no copy into it or out of it is under way any more."""
        copy, use = self._copies.pop(entry.page, None), self._uses.get(entry.page)
        if copy is None:
            return
        if copy.tier is Tier.DISK:
            for slot in copy.slots:
                self._disk.release(slot)
            return
        last = use.arrived if use is not None and use.arrived is not None else copy.done
        if last is None or self._device.reached(last):
            self._host.release(copy.slots[0])
        else:
            self._retired.append((last, copy.slots[0]))

    def forget(self, entry: Entry) -> None:
        self._uses.pop(entry.page, None)

    def _reserve(self, tier: Tier, nbytes: int) -> list[Slot]:
        if tier is Tier.HOST:
            return [self._reserve_host(nbytes)]
        slots: list[Slot] = []
        try:
            for first in range(0, nbytes, _STAGING_BYTES):
                slots.append(self._disk.reserve(min(_STAGING_BYTES, nbytes - first)))
        except BaseException:
            for slot in slots:
                self._disk.release(slot)
            raise
        return slots

    def _reserve_host(self, nbytes: int) -> Slot:
        while self._retired and self._device.reached(self._retired[0][0]):
            self._host.release(self._retired.popleft()[1])
        while True:
            try:
                return self._host.reserve(nbytes)
            except StoreFullError:
                if not self._retired:
                    raise
                event, slot = self._retired.popleft()
                self._wait(partial(self._device.synchronize, event))
                self._host.release(slot)

    def _stage(self) -> "_Staging":
        if self._staging is None:
            self._staging = _Staging(self._device, self._wait)
        return self._staging

    # -- the rest ----------------------------------------------------------------------------------------------------

    def is_out_of_memory(self, error: BaseException) -> bool:
        return self._device.is_out_of_memory(error)

    def trim(self) -> None:
        self._device.trim()

    def close(self) -> None:
        for stream in (self._out, self._in):
            self._device.synchronize(self._device.record(stream))
        self._forget_all()
        self._host.close()
        self._disk.close()

    def abandon(self) -> None:
        self._forget_all()
        self._disk.abandon()

    def _forget_all(self) -> None:
        self._copies.clear()
        self._uses.clear()
        self._retired.clear()


class _Staging:
    """Two page-locked buffers through which pages pass between device and disk, a piece at a time."""

    def __init__(self, device: StreamDevice, wait: Callable[[Callable[[], None]], None]) -> None:
        self._device, self._wait = device, wait
        self._buffers = [device.page_lock(_STAGING_BYTES) for _ in range(2)]
        self._busy: list[Callable[[], None] | None] = [None, None]

    def down(self, source: torch.Tensor, slots: list[Slot], disk: DiskStore, stream: Stream) -> list[Pending]:
        """Copy ``source`` into ``slots``; the writes still under way."""
        writes = []
        for index, (slot, piece) in enumerate(_pieces(source, slots)):
            buffer = self._free_buffer(index)[: slot.nbytes]
            self._device.copy(buffer, piece, stream)
            self._wait(partial(self._device.synchronize, self._device.record(stream)))
            writes.append(disk.write(slot, memory_of(buffer)))
            self._busy[index % 2] = writes[-1].wait
        return writes

    def up(self, target: torch.Tensor, slots: list[Slot], disk: DiskStore, stream: Stream) -> None:
        """Copy ``slots`` into ``target``; the last pieces may still be under way on ``stream``."""
        for index, (slot, piece) in enumerate(_pieces(target, slots)):
            buffer = self._free_buffer(index)[: slot.nbytes]
            self._wait(disk.read(slot, memory_of(buffer)).wait)
            self._device.copy(piece, buffer, stream)
            self._busy[index % 2] = partial(self._device.synchronize, self._device.record(stream))

    def _free_buffer(self, index: int) -> torch.Tensor:
        busy, self._busy[index % 2] = self._busy[index % 2], None
        if busy is not None:
            with suppress(StoreError):  # told to whoever waits for that write
                self._wait(busy)
        return self._buffers[index % 2]


def _pieces(tensor: torch.Tensor, slots: list[Slot]) -> Iterator[tuple[Slot, torch.Tensor]]:
    first = 0
    for slot in slots:
        yield slot, tensor[first : first + slot.nbytes]
        first += slot.nbytes
