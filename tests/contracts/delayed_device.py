"""A device with streams, played on CPU memory, that forgives nothing.

Operations of the program run at once, in the order of the host. Copies that are queued on a stream of the executor's
run as late as the recorded events allow: not before somebody waits for them. Memory that has not arrived, or was given
back, holds 0xFF bytes, which are NaNs. So whoever forgets to wait computes with NaNs.

That alone would not show a copy that runs too early, for it never does here. So every stream, and the host, carries a
vector clock: what is known to have happened before whatever is queued next. Two uses of the same bytes, one of them a
write, of which neither is known to come before the other, are a race; so is memory that goes back to its stream while
another may still use it. A race is noted in ``violations``, and a copy that takes part in one copies 0xFF.
"""

import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lms.capture.registry import STORAGE, Entry, storage_nbytes
from torch_lms.capture.schema import describe
from torch_lms.capture.tensors import storage_of, tensors_among
from torch_lms.errors import PageLostError, StoreError, StoreFullError
from torch_lms.planner import make_plan
from torch_lms.runtime.device import StreamDevice
from torch_lms.runtime.executor import empty_storage, fill_storage, memory_of
from torch_lms.runtime.options import Options
from torch_lms.runtime.session import Session
from torch_lms.runtime.steps import StepHooks
from torch_lms.runtime.streams import StreamExecutor
from torch_lms.stores.base import Pending, Slot
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.host import HostStore

POISON = 0xFF
OUT, IN, USER, HOST = "out", "in", "user", "host"

Clock = dict["Stream", int]
_address = STORAGE.data_ptr


@dataclass(eq=False)
class Stream:
    """``kind`` is OUT or IN for the executor's two, in the order in which it makes them, else USER."""

    name: str
    kind: str
    clock: Clock = field(default_factory=dict)
    queue: deque[Callable[[], None]] = field(default_factory=deque)
    queued: int = 0
    performed: int = 0

    def knows(self, other: "Stream", tick: int) -> bool:
        return other is self or self.clock.get(other, 0) >= tick

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Mark:
    """An event: ``position`` in the queue of ``stream``, and what has happened by then."""

    stream: Stream
    position: int
    clock: Clock


@dataclass(eq=False)
class Memory:
    """The bytes of one storage, and who used which of them when.

    Attributes:
        home: the stream to which it belongs; None on the host.
        uses: (first byte, end, stream, whether written) -> tick of the last such use.
        kept_for: streams that the allocator itself waits for.
    """

    storage: "weakref.ref[torch.UntypedStorage]"
    home: Stream | None
    uses: dict[tuple[int, int, Stream, bool], int] = field(default_factory=dict)
    kept_for: set[Stream] = field(default_factory=set)

    def strangers(self) -> Clock:
        """Whom the stream must know to be through before it hands these bytes out again."""
        found: Clock = {}
        for (_, _, stream, _), tick in self.uses.items():
            if stream is not self.home and stream not in self.kept_for:
                found[stream] = max(found.get(stream, 0), tick)
        return found


class DeviceFull(RuntimeError):
    """Says that the device's memory ran out."""


class DelayedDevice(StreamDevice):
    """See above.

    Args:
        seed: None: copies run as late as they can; a number: some run earlier, by chance.
        deaf: (who, whom): waits of streams of the one kind for streams of the other that are left out, and ("host",
            whom) for the host's. For tests that show that a wait is needed.

    Attributes:
        violations: races so far.
        refusals: how many of the next allocations fail.
        slabs: page-locked memory.
        hooks: called with the name of each method before it does anything; may raise.
    """

    def __init__(self, seed: int | None = None, deaf: frozenset[tuple[str, str]] = frozenset()) -> None:
        self.violations: list[str] = []
        self.refusals = 0
        self.hooks: list[Callable[[str], None]] = []
        self.host_clock: Clock = {}
        self._deaf = deaf
        self._chance = None if seed is None else random.Random(seed)
        self._sides: list[Stream] = []
        self._memories: dict[int, Memory] = {}
        self.slabs: list[Memory] = []
        self._debts: dict[Stream, Clock] = {}
        self.main = self.user_stream("main")
        self._current = self.main

    # -- for the tests -----------------------------------------------------------------------------------------------

    def user_stream(self, name: str) -> Stream:
        """A stream of the program's."""
        return Stream(name, USER)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """What the program does in this block runs on ``stream``."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def order(self, first: Stream, then: Stream) -> None:
        """The program makes ``then`` wait for ``first``."""
        _join(then.clock, self._record(first).clock)

    def watch(self) -> "UserOps":
        """A mode that tells of the program's operations."""
        return UserOps(self)

    @property
    def under_way(self) -> int:
        """Copies and waits that are queued."""
        return sum(len(side.queue) for side in self._sides)

    # -- StreamDevice ------------------------------------------------------------------------------------------------

    def current_stream(self) -> Stream:
        return self._current

    def new_stream(self) -> Stream:
        kind = (OUT, IN)[len(self._sides)]
        self._sides.append(Stream(kind, kind))
        return self._sides[-1]

    def record(self, stream: Stream) -> Mark:
        self._called("record")
        return self._record(stream)

    def seconds_between(self, first: Mark, second: Mark) -> float:
        return float(second.position - first.position)

    def wait(self, stream: Stream, event: Mark) -> None:
        self._called("wait")
        if (stream.kind, event.stream.kind) in self._deaf:
            return
        _join(stream.clock, event.clock)
        if stream.kind is USER:
            self._run_until(event)
        else:
            self._queue(stream, lambda: self._run_until(event))

    def synchronize(self, event: Mark) -> None:
        self._called("synchronize")
        if (HOST, event.stream.kind) not in self._deaf:
            self._run_until(event)
            _join(self.host_clock, event.clock)

    def reached(self, event: Mark) -> bool:
        self._called("reached")
        if self._chance is None:  # as late as possible: not before the host has waited for it
            return all(self.host_clock.get(stream, 0) >= tick for stream, tick in event.clock.items())
        if event.stream.performed < event.position:
            return False
        _join(self.host_clock, event.clock)
        return True

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        self._called("copy")
        clean = self._use(source, stream, False, "copies from")
        clean = self._use(target, stream, True, "copies to") and clean
        to, of = _Place(target), _Place(source)

        def perform() -> None:
            if not to.exists or not of.exists:
                self._violate(f"{stream} copies {of} to {to}, of which one was freed")
            elif clean:
                to.bytes[:] = of.bytes
            else:
                to.bytes[:] = POISON

        self._queue(stream, perform)
        self._called("copied")

    def allocate(self, storage: torch.UntypedStorage, nbytes: int, stream: Stream) -> None:
        self._called("allocate")
        if self.refusals:
            self.refusals -= 1
            raise DeviceFull("the device is full")
        fill_storage(storage, nbytes)
        self._handed_out(storage, stream)
        _Place(self.bytes_of(storage)).bytes[:] = POISON

    def free(self, storage: torch.UntypedStorage) -> None:
        self._called("free")
        if storage_nbytes(storage):
            memory = self._memory(storage)
            self._demand(memory.home, memory.strangers(), "is given back")
            memory.uses = {}
            _Place(self.bytes_of(storage)).bytes[:] = POISON
            empty_storage(storage)

    def keep_for(self, storage: torch.UntypedStorage, stream: Stream) -> None:
        self._memory(storage).kept_for.add(stream)

    def bytes_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        with torch._C._DisableTorchDispatch():
            return torch.empty(0, dtype=torch.uint8).set_(storage)

    def page_lock(self, nbytes: int) -> torch.Tensor:
        self._called("page_lock")
        slab = torch.full((nbytes,), POISON, dtype=torch.uint8)
        memory = Memory(weakref.ref(slab.untyped_storage()), None)
        self._memories[id(slab.untyped_storage())] = memory
        self.slabs.append(memory)
        return slab

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, DeviceFull)

    def drain(self) -> None:
        for stream in (self.main, *self._sides):
            self.synchronize(self.record(stream))

    def trim(self) -> None:
        pass

    # -- told by the double's own stores and modes -------------------------------------------------------------------

    def used(self, tensor: Any, written: bool) -> None:
        """The program's operation on the current stream uses ``tensor``."""
        if storage_nbytes(storage_of(tensor)):
            self._use(tensor, self._current, written, "writes" if written else "reads", whole=True)

    def created(self, tensor: Any) -> None:
        """It made ``tensor``, or gave it other memory."""
        storage = storage_of(tensor)
        if storage_nbytes(storage) and self._known(storage) is None:
            self._handed_out(storage, self._current)

    def host_uses(self, address: int, nbytes: int, written: bool, what: str) -> None:
        """The host uses page-locked memory, without further waiting."""
        for slab in self.slabs:
            storage = slab.storage()
            if storage is None or not _address(storage) <= address < _address(storage) + storage_nbytes(storage):
                continue
            first = address - _address(storage)
            for (begin, end, stream, wrote), tick in slab.uses.items():
                overlap = begin < first + nbytes and first < end
                if overlap and (wrote or written) and self.host_clock.get(stream, 0) < tick:
                    self._violate(f"the host {what} {first}-{first + nbytes}, which {stream} may be {_doing(wrote)}")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _called(self, name: str) -> None:
        for hook in self.hooks:
            hook(name)
        if self._chance is not None:
            for side in self._sides:
                if side.queue and self._chance.random() < 0.3:
                    self._run(side, side.performed + self._chance.randint(1, len(side.queue)))

    def _violate(self, what: str) -> None:
        self.violations.append(what)

    def _record(self, stream: Stream) -> Mark:
        _join(stream.clock, self.host_clock)
        return Mark(stream, stream.queued, dict(stream.clock))

    def _queue(self, stream: Stream, task: Callable[[], None]) -> None:
        stream.queue.append(task)
        stream.queued += 1

    def _run_until(self, event: Mark) -> None:
        self._run(event.stream, event.position)

    def _run(self, stream: Stream, position: int) -> None:
        while stream.performed < position:
            task = stream.queue.popleft()
            stream.performed += 1
            task()

    def _known(self, storage: torch.UntypedStorage) -> Memory | None:
        memory = self._memories.get(id(storage))
        return memory if memory is not None and memory.storage() is storage else None

    def _memory(self, storage: torch.UntypedStorage) -> Memory:
        memory = self._known(storage)
        if memory is None:  # older than the watching: it was made on the main stream, long ago
            memory = self._handed_out(storage, self.main)
            memory.uses.clear()
        return memory

    def _handed_out(self, storage: torch.UntypedStorage, home: Stream) -> Memory:
        """Whoever had this memory before may still be queued on ``home``: that counts as a write there, now."""
        self._demand(home, self._debts.pop(home, {}), "is handed out")
        memory = self._known(storage)
        if memory is None:
            memory = Memory(weakref.ref(storage), home)
            weakref.finalize(storage, self._died, memory).atexit = False
            self._memories[id(storage)] = memory
        memory.home, memory.uses, memory.kept_for = home, {}, set()
        self._note(memory, 0, storage_nbytes(storage), home, True)
        return memory

    def _died(self, memory: Memory) -> None:
        """Its home may hand out the bytes next time it is asked for some."""
        if memory.home is not None:
            _join(self._debts.setdefault(memory.home, {}), memory.strangers())
            memory.uses = {}

    def _demand(self, home: Stream | None, strangers: Clock, what: str) -> None:
        if home is not None:
            _join(home.clock, self.host_clock)
            for stream, tick in strangers.items():
                if not home.knows(stream, tick):
                    self._violate(f"memory of {home} {what} while {stream} may be using it")

    def _use(self, tensor: Any, stream: Stream, written: bool, what: str, whole: bool = False) -> bool:
        """Whether nobody else may be using the same bytes."""
        _join(stream.clock, self.host_clock)
        storage = storage_of(tensor)
        memory = self._memory(storage)
        first = 0 if whole else tensor.storage_offset()
        last = storage_nbytes(storage) if whole else first + tensor.numel()
        clean = True
        for (begin, end, other, wrote), tick in memory.uses.items():
            overlap = begin < last and first < end
            if overlap and (wrote or written) and not stream.knows(other, tick):
                self._violate(f"{stream} {what} bytes {first}-{last}, which {other} may be {_doing(wrote)}")
                clean = False
        self._note(memory, first, last, stream, written)
        return clean

    def _note(self, memory: Memory, first: int, last: int, stream: Stream, written: bool) -> None:
        tick = stream.clock[stream] = stream.clock.get(stream, 0) + 1
        memory.uses[first, last, stream, written] = tick


def _join(clock: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        clock[stream] = max(clock.get(stream, 0), tick)


def _doing(written: bool) -> str:
    return "writing" if written else "reading"


class _Place:
    """Some bytes of a storage, which it does not keep alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        self._storage = weakref.ref(storage)
        self._address, self._whole = _address(storage), storage_nbytes(storage)
        self._first, self._nbytes = tensor.storage_offset(), tensor.numel()

    @property
    def exists(self) -> bool:
        storage = self._storage()
        return storage is not None and (_address(storage), storage_nbytes(storage)) == (self._address, self._whole)

    @property
    def bytes(self) -> np.ndarray:
        storage = self._storage()
        assert storage is not None
        return np.frombuffer(memory_of(storage), np.uint8)[self._first : self._first + self._nbytes]

    def __repr__(self) -> str:
        return f"{self._nbytes} of {self._whole} bytes"


class UserOps(TorchDispatchMode):
    """Tells the device of the program's operations. To stand below the session's mode."""

    def __init__(self, device: DelayedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
        kwargs = kwargs or {}
        info = describe(func)
        if not info.view and info.packet != "aten::set_":  # which touches no byte, either
            written = {id(t) for t in tensors_among(info.written_args(args, kwargs))}
            for tensor in _on_cpu((*args, *kwargs.values())):
                self._device.used(tensor, info.opaque or id(tensor) in written)
        result = func(*args, **kwargs)
        for tensor in _on_cpu(result if isinstance(result, tuple | list) else (result,)):
            self._device.created(tensor)
        return result


def _on_cpu(values: Any) -> list[Any]:
    """The tensors among ``values`` but for those on which the session tries out shapes."""
    return [tensor for tensor in tensors_among(values) if tensor.device.type == "cpu"]


class WatchedHost(HostStore):
    """Room that is given back must be the host's alone, and is poisoned."""

    def __init__(self, device: DelayedDevice, capacity: int, slab_bytes: int) -> None:
        super().__init__(capacity, device.page_lock, slab_bytes)
        self._device = device

    def release(self, slot: Slot) -> None:
        place = _Place(self.tensor(slot))
        self._device.host_uses(place.bytes.ctypes.data, slot.nbytes, True, "gives back")
        place.bytes[:] = POISON
        super().release(slot)


class LateDisk(DiskStore):
    """Copies to and from its file run when somebody waits for them, not before.

    Attributes:
        writes, reads: begun so far.
        failing_writes, failing_reads: which of them fail, counted from 0.
        full: whether it has no more room.
    """

    def __init__(self, device: DelayedDevice, directory: Path, capacity: int) -> None:
        super().__init__(directory, capacity, threads=1, direct=False)
        self._device = device
        self._late: list[_Late] = []
        self.writes = self.reads = 0
        self.failing_writes: set[int] = set()
        self.failing_reads: set[int] = set()
        self.full = False

    def reserve(self, nbytes: int) -> Slot:
        if self.full:
            raise StoreFullError("the disk is full")
        return super().reserve(nbytes)

    def write(self, slot: Slot, source: memoryview) -> Pending:
        memory = np.frombuffer(source, np.uint8)
        self._device.host_uses(memory.ctypes.data, slot.nbytes, False, "writes to disk")
        failure = StoreFullError("the disk is full") if self.writes in self.failing_writes else None
        self.writes += 1
        return self._later(_Late(slot, lambda: super(LateDisk, self).write(slot, source), failure))

    def read(self, slot: Slot, target: memoryview) -> Pending:
        memory = np.frombuffer(target, np.uint8)
        self._device.host_uses(memory.ctypes.data, slot.nbytes, True, "reads from disk")
        memory[:] = POISON
        failure = PageLostError("the disk broke") if self.reads in self.failing_reads else None
        self.reads += 1
        return self._later(_Late(slot, lambda: super(LateDisk, self).read(slot, target), failure))

    def release(self, slot: Slot) -> None:
        for late in [late for late in self._late if late.slot == slot]:
            late.settle()
        super().release(slot)

    def _later(self, late: "_Late") -> "_Late":
        self._late = [other for other in self._late if not other.done()]
        self._late.append(late)
        return late


class _Late(Pending):
    def __init__(self, slot: Slot, start: Callable[[], Pending], failure: StoreError | None) -> None:
        self.slot = slot
        self._start: Callable[[], Pending] | None = start
        self._failure = failure

    def settle(self) -> None:
        start, self._start = self._start, None
        if start is not None and self._failure is None:
            start().wait()

    def wait(self) -> None:
        self.settle()
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def done(self) -> bool:
        return self._start is None


class WatchedExecutor(StreamExecutor):
    """Tells the device what the operations do that recompute a page: no mode sees them."""

    def recompute(self, entry: Entry, inputs: list[Entry], make: Callable[[], None]) -> None:
        def told() -> None:
            held = [storage for page in inputs if (storage := page()) is not None]
            for storage in held:
                device.used(storage, written=False)
            make()
            made = entry()
            if made is not None:
                device.created(made)
                device.used(made, written=True)

        device: Any = self._device
        super().recompute(entry, inputs, told)


@dataclass(eq=False)
class Rig:
    """A device, its stores and its executor."""

    device: DelayedDevice
    host: WatchedHost
    disk: LateDisk
    executor: StreamExecutor


def new_rig(
    directory: Path,
    host_bytes: int,
    *,
    disk_bytes: int = 1 << 30,
    slab_bytes: int = 64 << 10,
    staging_bytes: int = 16 << 10,
    device: DelayedDevice | None = None,
) -> Rig:
    """Small slabs and staging buffers, so that little pages need several."""
    device = DelayedDevice() if device is None else device
    host = WatchedHost(device, host_bytes, slab_bytes)
    disk = LateDisk(device, directory, disk_bytes)
    return Rig(device, host, disk, WatchedExecutor(device, host, disk, staging_bytes))


@contextmanager
def paged(
    rig: Rig, limit: int, min_size: int = 1000, policy: str = "reactive", recompute: bool = True
) -> Iterator[Session]:
    """A session whose CPU tensors are pages of ``rig``'s device. Leaves everything as it was."""
    options = Options(
        kind="cpu",
        limit=limit,
        min_size=min_size,
        host_limit=rig.host.capacity,
        spill_dir=rig.disk.directory,
        policy=policy,
        recompute=recompute,
        exact=True,
        make_plan=make_plan,
    )
    with rig.device.watch():
        session = Session(options, lambda _: rig.executor)
        hooks = StepHooks(session.step, session.adopt, lambda: session.uses, session.suspecting, session.limit_of)
        hooks.install()
        session.interposer.attach()
        try:
            yield session
            session.close()
        finally:
            hooks.uninstall()
            session.interposer.detach()
            if session.active:  # a test went wrong
                session._let_go()
                rig.host.close()
                rig.disk.close()
