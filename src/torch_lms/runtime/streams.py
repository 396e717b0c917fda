"""An accelerator with streams: behind its memory comes page-locked host memory, behind that the disk.

Who waits for whom (N5), also where the native interposer copies (`native/csrc/lanes.h`). "Home" is the stream for which
a page's memory was allocated, and to which it goes back.

1. A copy down waits for every stream that used the page: for the first mark there after the page's last use, so that it
   runs beside what the stream was asked since.
2. Home waits for the copy down before the memory is freed: it may be handed out again there at once. It waits, too,
   for every other stream that used the page since the copy was made, or of which there is no copy (but see 5).
   What the program had before we saw it may belong to any stream: of such memory the allocator is told who uses it.
3. A copy up waits for home at the moment of the allocation: whoever had the memory before may still be queued there.
   Home has waited for the program's current stream, which may still use what the program let go of.
   Home has waited for the copy down (2), so the copy up is behind that, too.
4. Home waits for the copy up, and so does every other stream before it uses the page.
5. The allocator is told of every other stream that uses memory which we allocated, and waits for it when that memory
   comes free, by our hand or with the program's last reference. Where the program said so itself (`record_stream`), it
   said it of memory that is gone.
6. What is freed without a copy, because it can be recomputed, comes free when all streams are through with it; it is
   recomputed on home, and every other stream waits for that before it uses the page, or one of those that it was
   recomputed from: the program, which may write these next or let go of them, does not know that they are read.
7. A lower copy's room is used again only when no copy into it or out of it is under way.
8. A page may be written while it is copied down: nobody reads that copy.

A page under way has its storage held, so the program cannot end it; and each step is safe to repeat, since an interrupt
can come when a step is done and the pager has not heard of it yet.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch

from torch_lms.capture.registry import Entry
from torch_lms.errors import StoreError, StoreFullError
from torch_lms.machine import PYTHON, default_host_costs
from torch_lms.residency import PageId, Tier
from torch_lms.runtime.clock import StreamClock
from torch_lms.runtime.device import Stream, StreamDevice, StreamEvent
from torch_lms.runtime.executor import Executor
from torch_lms.runtime.staging import Staging
from torch_lms.runtime.stream_marks import StreamMarks
from torch_lms.stores.base import Pending, Slot
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.host import HostStore
from torch_lms.timeline import Copies, Lane, Span


@dataclass(slots=True)
class _Copy:
    """A page's lower copy.

    Attributes:
        tier, slots: where it is: one slot in host memory, or several on disk.
        done: passes when the copy into host memory is complete.
        read: passes when the last copy out of host memory is complete.
        writes: those to the disk that are under way.
        storage: held while the page is on its way, down or up.
        is_up: whether the last copy was one up.
        failure: why it could not be brought back.
    """

    tier: Tier
    slots: list[Slot]
    done: StreamEvent | None = None
    read: StreamEvent | None = None
    writes: list[Pending] = field(default_factory=list)
    storage: torch.UntypedStorage | None = None
    is_up: bool = False
    failure: StoreError | None = None


@dataclass(slots=True)
class _Use:
    """Which streams know a page.

    Attributes:
        home: see above. Until the first fetch, the stream on which the page was first seen.
        streams: those that may use it as it is: ``home``, and all that used it since it last came.
        arrived: passes when the last fetch is complete; None if we did not allocate its memory.
        read: passes when the last recomputation that read it is complete; None if there was none since it came.
        is_adopted: whether its memory may be that of another stream than ``home``.
    """

    home: Stream
    streams: set[Stream]
    arrived: StreamEvent | None = None
    read: StreamEvent | None = None
    is_adopted: bool = False


class StreamExecutor(Executor):
    """Device to page-locked host memory to disk, on one stream for each direction.

    Args:
        device: the device.
        host: page-locked host memory.
        disk: behind it.
        staging_bytes: size of each of two page-locked buffers on the way to the disk; they come on top of ``host``.
    """

    def __init__(self, device: StreamDevice, host: HostStore, disk: DiskStore, staging_bytes: int = 32 << 20) -> None:
        self._clock = StreamClock(device)
        super().__init__({Tier.HOST: host, Tier.DISK: disk}, self._clock)
        self._device, self._host, self._disk = device, host, disk
        self._staging_bytes = staging_bytes
        self.host_cost = default_host_costs()[PYTHON]
        self._out, self._in = device.new_stream(), device.new_stream()
        self._copies: dict[PageId, _Copy] = {}
        self._uses: dict[PageId, _Use] = {}
        self._retired: deque[tuple[list[StreamEvent], Slot]] = deque()
        self._staging: Staging | None = None
        self._under_way: dict[PageId, _Copy] = {}
        self._marks = StreamMarks()
        self._untimed: deque[tuple[Lane, StreamEvent, StreamEvent, int, PageId]] = deque()
        self._told: Callable[[PageId, int], None] | None = None

    @property
    def disk_bytes_per_s(self) -> tuple[float, float]:
        return self._disk.bytes_per_s

    def mark(self, tick: int) -> StreamEvent:
        stream = self._device.current_stream()
        event = self._device.record(stream)
        self._marks.add(stream, tick, event)
        return event

    def forget_marks(self) -> None:
        self._marks = StreamMarks()

    # -- down --------------------------------------------------------------------------------------------------------

    def start_evict(self, entry: Entry, tier: Tier, last_use: int = sys.maxsize) -> None:
        storage = entry()
        if storage is None:
            return
        self.discard(entry)
        copy = self._copies[entry.page] = _Copy(tier, self._reserve(tier, entry.nbytes), storage=storage)
        self._under_way[entry.page] = copy
        try:
            self._await_uses(entry, last_use)
            source = self._device.bytes_of(storage)
            began = self._device.record(self._out)
            if tier is Tier.HOST:
                self._device.copy(self._host.tensor(copy.slots[0]), source, self._out)
                copy.done = self._device.record(self._out)
                self._untimed.append((Lane.D2H, began, copy.done, entry.nbytes, entry.page))
            else:
                copy.writes = self._stage().down(source, copy.slots, self._disk, self._out)
                self._untimed.append((Lane.D2H, began, self._device.record(self._out), entry.nbytes, entry.page))
        except BaseException:
            self._give_up(entry)
            raise

    def _await_uses(self, entry: Entry, last_use: int) -> None:
        """Copies down wait until the page has come, and was used for the last time."""
        use = self._use_of(entry)
        if use.arrived is not None:
            self._device.wait(self._out, use.arrived)
        for stream in use.streams:
            mark = self._marks.first_after(stream, last_use)
            self._device.wait(self._out, self._device.record(stream) if mark is None else mark)

    def finish_evict(self, entry: Entry) -> None:
        """The host waits only for the disk."""
        copy = self._copies.get(entry.page)
        if copy is None:
            return
        try:
            for write in copy.writes:
                self._wait(write.wait)
            if copy.done is not None:
                self._await(self._use_of(entry).home, copy.done)
        except BaseException:
            self._give_up(entry)
            raise
        finally:
            self._under_way.pop(entry.page, None)
            copy.writes, copy.storage = [], None

    def release(self, entry: Entry) -> None:
        storage, use = entry(), self._use_of(entry)
        if storage is None:
            return
        if use.arrived is None:  # else the allocator was told of them (5)
            self._let_finish(use, storage)
        try:
            self._device.free(storage)
        except KeyboardInterrupt:  # the pager cannot know how far that came, and takes the page for gone
            self._device.free(storage)
            raise
        finally:
            use.streams, use.arrived, use.read, use.is_adopted = set(), None, None, False

    def _let_finish(self, use: _Use, storage: torch.UntypedStorage) -> None:
        """The page's memory may be handed out again at once to its home, while other streams still use it: there is no
        copy to wait for, or they have read the page since that was made.
        """
        if use.is_adopted:
            for stream in (self._out, *use.streams):
                self._device.keep_for(storage, stream)
            return
        for stream in use.streams - {use.home}:
            self._device.wait(use.home, self._device.record(stream))

    def recompute(self, entry: Entry, inputs: list[Entry], make: Callable[[], None]) -> None:
        """On the page's home, to which its memory must belong (see ``start_fetch``)."""
        use = self._use_of(entry)
        self._catch_up(use.home)
        try:
            with self._device.on(use.home):
                self.use(inputs)
                make()
        finally:
            done = self._device.record(use.home)
            for each in inputs:
                self._was_read(self._use_of(each), use.home, done)
        use.streams, use.arrived = {use.home}, done

    def _was_read(self, use: _Use, reader: Stream, done: StreamEvent) -> None:
        """By a recomputation on ``reader``, until ``done``."""
        use.read = done
        for stream in {use.home, *use.streams} - {reader}:
            self._device.wait(stream, done)

    def _give_up(self, entry: Entry) -> None:
        """An eviction failed: no copy is under way any more when this returns."""
        self._device.synchronize(self._device.record(self._out))
        self.discard(entry)

    # -- up ----------------------------------------------------------------------------------------------------------

    def start_fetch(self, entry: Entry) -> None:
        """The memory is home's again, wherever the page is needed: the program knows where it allocated it, and may
        count on that when it lets go of it.
        """
        copy, storage = self._copies.get(entry.page), entry()
        if copy is None or storage is None or copy.storage is not None:
            return
        copy.storage, copy.is_up = storage, True
        self._under_way[entry.page] = copy
        try:
            self._allocate(entry, storage)
            target = self._device.bytes_of(storage)
            began = self._device.record(self._in)
            if copy.tier is Tier.HOST:
                self._device.copy(target, self._host.tensor(copy.slots[0]), self._in)
            else:
                self._stage().up(target, copy.slots, self._disk, self._in)
            copy.read = self._has_come(entry)
            self._untimed.append((Lane.H2D, began, copy.read, entry.nbytes, entry.page))
        except BaseException as error:
            self._undo_fetch(copy, storage)
            if not isinstance(error, StoreError):
                raise
            copy.failure = error.with_traceback(None)  # its frames hold the storage

    def finish_fetch(self, entry: Entry) -> None:
        """The host waits for nothing."""
        copy = self._copies.get(entry.page)
        if copy is None:
            return
        self._under_way.pop(entry.page, None)
        if copy.failure is not None:
            failure, copy.failure = copy.failure, None
            raise failure
        try:
            self._let_home_wait(entry)
        except BaseException:
            if copy.storage is not None:
                self._undo_fetch(copy, copy.storage)
            raise
        copy.storage = None

    def _allocate(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        """Give the page memory of its home's, which copies up may use."""
        home = self._use_of(entry).home
        self._catch_up(home)
        self._device.allocate(storage, entry.nbytes, home)
        self._device.wait(self._in, self._device.record(home))

    def _has_come(self, entry: Entry) -> StreamEvent:
        """Its copy up is complete when this event is past."""
        use = self._use_of(entry)
        use.streams, use.arrived = set(), self._device.record(self._in)
        return use.arrived

    def _let_home_wait(self, entry: Entry) -> None:
        """For the copy up."""
        use = self._use_of(entry)
        if use.arrived is not None and use.home not in use.streams:
            self._await(use.home, use.arrived)
            use.streams.add(use.home)

    def _catch_up(self, home: Stream) -> None:
        """``home`` is about to be given memory, at a moment that the program did not choose: it may have let go of some
        that the current stream still uses, counting on an order that it will give before it allocates there again.
        """
        current = self._device.current_stream()
        if current is not home:
            self._device.wait(home, self._device.record(current))

    def _undo_fetch(self, copy: _Copy, storage: torch.UntypedStorage) -> None:
        self._device.synchronize(self._device.record(self._in))
        self._device.free(storage)
        copy.storage = None

    def landed(self) -> list[PageId]:
        """Copies in one direction end in their order: behind one that has not ended none need be asked."""
        found = []
        pending = {False: False, True: False}
        for page, copy in self._under_way.items():
            if pending[copy.is_up]:
                continue
            if self._has_landed(copy):
                found.append(page)
            else:
                pending[copy.is_up] = True
        return found

    @property
    def made(self) -> int:
        return len(self._untimed)

    def ended(self) -> Copies:
        """Those that are over. In each lane they end in the order in which they began."""
        for _ in range(len(self._untimed)):
            lane, began, ended, nbytes, page = untimed = self._untimed.popleft()
            if not self._device.reached(ended):
                self._untimed.append(untimed)
                continue
            start_s, end_s = self.clock.when(began), self.clock.when(ended)
            if lane is Lane.COMPUTE:
                self.stall_s += max(0.0, end_s - start_s)
                continue
            self._spans.append(Span(lane, "evict" if lane is Lane.D2H else "fetch", start_s, end_s, nbytes, page))
        return super().ended()

    def _has_landed(self, copy: _Copy) -> bool:
        if copy.is_up:
            return copy.failure is not None or copy.read is None or self._device.reached(copy.read)
        return all(write.done() for write in copy.writes) and (copy.done is None or self._device.reached(copy.done))

    def _await(self, stream: Stream, copied: StreamEvent) -> None:
        """``stream`` waits for a copy. If that is the program's, the time counts that it stands still."""
        if stream is not self._device.current_stream() or self._device.reached(copied):
            self._device.wait(stream, copied)
            return
        began = self.clock.mark()
        self._device.wait(stream, copied)
        self._untimed.append((Lane.COMPUTE, began, self.clock.mark(), 0, -1))

    def use(self, entries: Iterable[Entry]) -> None:
        current = self._device.current_stream()
        for entry in entries:
            use = self._uses.get(entry.page)
            if use is None:
                self._uses[entry.page] = _Use(current, {current})
                self._tell(entry.page, current)
            elif current not in use.streams:
                self._join(current, use, entry)
                self._tell(entry.page, current)

    def born(self, entry: Entry, stream: int) -> None:
        if entry.page not in self._uses:
            home = self._device.stream_of(stream)
            self._uses[entry.page] = _Use(home, {home})

    def tell_streams(self, told: Callable[[PageId, int], None]) -> None:
        self._told = told
        for page in self._uses:
            for stream in self.streams_of(page):
                told(page, stream)

    def streams_of(self, page: PageId) -> list[int]:
        use = self._uses.get(page)
        return [] if use is None else [self._device.id_of(stream) for stream in use.streams]

    def _tell(self, page: PageId, stream: Stream) -> None:
        if self._told is not None:
            self._told(page, self._device.id_of(stream))

    def adopt(self, entry: Entry) -> None:
        self._use_of(entry).is_adopted = True

    def _join(self, stream: Stream, use: _Use, entry: Entry) -> None:
        """``stream`` uses the page as well."""
        if use.arrived is not None:
            self._await(stream, use.arrived)
            storage = entry()
            if storage is not None:
                self._device.keep_for(storage, stream)
        if use.read is not None:
            self._device.wait(stream, use.read)
        use.streams.add(stream)

    def _use_of(self, entry: Entry) -> _Use:
        if entry.page not in self._uses:
            self.use((entry,))
        return self._uses[entry.page]

    # -- lower tiers -------------------------------------------------------------------------------------------------

    def discard(self, entry: Entry) -> None:
        copy = self._copies.pop(entry.page, None)
        self._under_way.pop(entry.page, None)
        if copy is None:
            return
        if copy.tier is Tier.DISK:  # nothing of the device's: it waits for its own writes
            for slot in copy.slots:
                self._disk.release(slot)
            return
        events = [e for e in (copy.done, copy.read) if e is not None and not self._device.reached(e)]
        if events:
            self._retired.append((events, copy.slots[0]))
        else:
            self._host.release(copy.slots[0])

    def grows(self, new_bytes: int, resident_bytes: int, limit: int) -> None:
        """What was freed, PyTorch's allocator gives out again."""

    def forget(self, entry: Entry) -> None:
        self.discard(entry)
        self._uses.pop(entry.page, None)

    def _reserve(self, tier: Tier, nbytes: int) -> list[Slot]:
        if tier is Tier.HOST:
            return [self._reserve_host(nbytes)]
        slots: list[Slot] = []
        try:
            for first in range(0, nbytes, self._staging_bytes):
                slots.append(self._disk.reserve(min(self._staging_bytes, nbytes - first)))
        except BaseException:
            for slot in slots:
                self._disk.release(slot)
            raise
        return slots

    def _reserve_host(self, nbytes: int) -> Slot:
        while self._retired and all(map(self._device.reached, self._retired[0][0])):
            self._host.release(self._retired.popleft()[1])
        while self._retired:
            try:
                return self._host.reserve(nbytes)
            except StoreFullError:
                pass
            events, slot = self._retired[0]
            for event in events:
                self._wait(partial(self._device.synchronize, event))
            self._retired.popleft()
            self._host.release(slot)
        return self._host.reserve(nbytes)

    def _stage(self) -> Staging:
        if self._staging is None:
            self._staging = Staging(self._device, self._staging_bytes, self._wait)
        return self._staging

    # -- the rest ----------------------------------------------------------------------------------------------------

    def is_out_of_memory(self, error: BaseException) -> bool:
        return self._device.is_out_of_memory(error)

    def drain(self) -> None:
        self._device.drain()

    def trim(self) -> None:
        self._device.trim()

    def close(self) -> None:
        """Pages that just came back are there for every stream: from now on nobody makes one wait."""
        for stream in (self._out, self._in):
            self._device.synchronize(self._device.record(stream))
        self._copies.clear()
        self._under_way.clear()
        self._uses.clear()
        self._retired.clear()
        self._host.close()
        self._disk.close()
        self._staging = None  # not before: the disk may still have been writing from it

    def abandon(self) -> None:
        """The device's part is only left alone: a forked child must not call it, not even to destroy an event."""
        self._disk.abandon()
