"""Pages of devices with streams where there is a native interposer: what `StreamExecutor` does, without Python."""

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

import torch

from torch_lms.capture.registry import Entry
from torch_lms.errors import StoreFullError
from torch_lms.machine import NATIVE, default_host_costs
from torch_lms.native import Laning, Moment, Native
from torch_lms.residency import PageId, Tier
from torch_lms.runtime.accelerator import AcceleratorDevice
from torch_lms.runtime.device import Stream
from torch_lms.runtime.streams import StreamExecutor
from torch_lms.stores.base import Slot
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.host import HostStore
from torch_lms.timeline import Copies

_GRANTED_BYTES = 16 << 20
"""Of host memory, at a time. It is the interposer's until the session ends, or somebody else needs it."""


class NativeAcceleratorDevice(AcceleratorDevice):
    """Its events are the native interposer's.

    Attributes:
        lanes: of the device.
    """

    def __init__(self, device: torch.device, native: Native) -> None:
        super().__init__(device)
        self.lanes: Laning = native.Lanes(f"{device.type}:{self._index}")

    def record(self, stream: Stream) -> Moment:
        return self.lanes.record(self.id_of(stream))

    def seconds_between(self, first: Moment, second: Moment) -> float:
        return second.seconds_since(first)

    def wait(self, stream: Stream, event: Moment) -> None:
        self.lanes.hold_up(self.id_of(stream), event)

    def synchronize(self, event: Moment) -> None:
        event.wait()

    def reached(self, event: Moment) -> bool:
        return event.is_past()


class NativeStreamExecutor(StreamExecutor):
    """Copies to host memory and back are the native interposer's, and who waits for whom. Python has those to the disk.

    Args:
        device: the device.
        host: page-locked host memory.
        disk: behind it.

    Attributes:
        lanes: of the device.
    """

    def __init__(self, device: NativeAcceleratorDevice, host: HostStore, disk: DiskStore) -> None:
        super().__init__(device, host, disk)
        self.host_cost = default_host_costs()[NATIVE]
        self.lanes = device.lanes
        self.lanes.copy_on(device.id_of(self._out), device.id_of(self._in))
        self._granted: list[Slot] = []

    def mark(self, tick: int) -> Moment:
        return self.lanes.mark(tick)

    def forget_marks(self) -> None:
        self.lanes.forget_marks()

    # -- down --------------------------------------------------------------------------------------------------------

    def start_evict(self, entry: Entry, tier: Tier, last_use: int = sys.maxsize) -> None:
        storage = entry()
        if tier is not Tier.HOST or storage is None:
            super().start_evict(entry, tier, last_use)
            return
        super().discard(entry)
        while not self.lanes.start_evict(entry.page, storage, last_use):
            self._make_room(entry.nbytes)

    def _await_uses(self, entry: Entry, last_use: int) -> None:
        self.lanes.await_uses(entry.page, last_use)

    def finish_evict(self, entry: Entry) -> None:
        if entry.page in self._copies:
            super().finish_evict(entry)
        else:
            self.lanes.finish_evict(entry.page)

    def release(self, entry: Entry) -> None:
        storage = entry()
        if storage is not None:
            self.lanes.release(entry.page, storage)

    def recompute(self, entry: Entry, inputs: list[Entry], make: Callable[[], None]) -> None:
        before = self.lanes.begin_recompute(entry.page)
        is_done = False
        try:
            self.use(inputs)
            make()
            is_done = True
        finally:
            self.lanes.end_recompute(entry.page, [each.page for each in inputs], before, is_done)

    # -- up ----------------------------------------------------------------------------------------------------------

    def start_fetch(self, entry: Entry) -> None:
        storage = entry()
        if storage is not None and self.lanes.has(entry.page):
            self.lanes.start_fetch(entry.page, storage)
        else:
            super().start_fetch(entry)

    def finish_fetch(self, entry: Entry) -> None:
        if entry.page in self._copies:
            super().finish_fetch(entry)
        else:
            self.lanes.finish_fetch(entry.page)

    def _allocate(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        self.lanes.allocate(entry.page, storage, entry.nbytes)

    def _has_come(self, entry: Entry) -> Moment:
        return self.lanes.came(entry.page)

    def _let_home_wait(self, entry: Entry) -> None:
        self.lanes.finish_fetch(entry.page)

    def landed(self) -> list[PageId]:
        return [*super().landed(), *self.lanes.landed()]

    @property
    def made(self) -> int:
        return super().made + self.lanes.made()

    def ended(self) -> Copies:
        copied = Copies.moved(*self.lanes.take_copied(*self._clock.near))
        self.stall_s += self.lanes.take_stalled_s()
        return copied.beside(super().ended())

    # -- streams -----------------------------------------------------------------------------------------------------

    def use(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            storage = entry()
            if storage is not None and self.lanes.use(entry.page, storage) and self._told is not None:
                self._tell(entry.page, self._device.current_stream())

    def born(self, entry: Entry, stream: int) -> None:
        self.lanes.born(entry.page, stream)

    def tell_streams(self, told: Callable[[PageId, int], None]) -> None:
        self._told = told
        for page in self.lanes.known():
            for stream in self.streams_of(page):
                told(page, stream)

    def streams_of(self, page: PageId) -> list[int]:
        return self.lanes.streams_of(page)

    def adopt(self, entry: Entry) -> None:
        self.lanes.adopt(entry.page)

    # -- lower tiers -------------------------------------------------------------------------------------------------

    def discard(self, entry: Entry) -> None:
        super().discard(entry)
        self.lanes.discard(entry.page)

    def forget(self, entry: Entry) -> None:
        super().discard(entry)
        self.lanes.forget(entry.page)

    def _make_room(self, nbytes: int) -> None:
        """Have host memory for a page of ``nbytes``, or have it be free soon.

        Raises:
            StoreFullError: there is none.
        """
        with suppress(StoreFullError):
            self._grant(max(nbytes, _GRANTED_BYTES))
            return
        waited: list[bool] = []
        self._wait(lambda: waited.append(self.lanes.wait_for_memory()))
        if waited[0]:
            return
        for slot in list(self._granted):
            if self.lanes.take_back(slot.offset, slot.length):
                self._granted.remove(slot)
                self._host.release(slot)
        self._grant(nbytes)

    def _grant(self, nbytes: int) -> None:
        slot = self._host.reserve(nbytes)
        self._granted.append(slot)
        address = torch._C.TensorBase.data_ptr(self._host.tensor(slot))
        self.lanes.grant(slot.offset, slot.length, address)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        super().close()
        self.lanes.close()

    def abandon(self) -> None:
        self.lanes.abandon()
        super().abandon()
