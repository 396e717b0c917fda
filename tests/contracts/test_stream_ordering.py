"""Who waits for whom when pages move on streams (N5): on a device that delays every copy as long as it may.

The first part trains under it; the second leaves out one wait at a time and shows that it is missed; the rest drives
the executor by hand into what training does not reach.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import same_bits
from contracts.delayed_device import (
    HOST,
    IN,
    OUT,
    USER,
    DelayedDevice,
    DeviceFull,
    Rig,
    Stream,
    new_rig,
    paged,
)
from torch import nn
from workloads import WORKLOADS, Workload

from torch_lms.capture.registry import Entry, Registry, storage_nbytes
from torch_lms.engine import engine
from torch_lms.errors import PageLostError, StoreFullError
from torch_lms.planner import Speeds
from torch_lms.residency import Tier
from torch_lms.runtime.staging import Staging
from torch_lms.runtime.streams import StreamExecutor

CPU = torch.device("cpu")
PLENTY = 1 << 30

# -- training --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["cnn", "encoder", "lstm"], scope="module")
def workload(request: pytest.FixtureRequest) -> Workload:
    return WORKLOADS[request.param]


@pytest.fixture(scope="module")
def reference(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[torch.Tensor], int]:
    """Results without LMS, and the demand."""
    with paged(new_rig(tmp_path_factory.mktemp("spill"), PLENTY), PLENTY) as session:
        workload(CPU)
        demand = session.stats().peak_resident_bytes
        assert session.stats().evictions == 0
    return workload(CPU), demand


@pytest.mark.parametrize(
    ("share", "host", "seed"),
    [
        (1 / 2, "large", None),
        (1 / 4, "large", None),
        (1 / 4, "small", None),
        (0, "large", None),
        (0, "small", None),
        (0, "none", None),
        (0, "small", 1),
    ],
)
def test_training_is_equal_to_the_bit(
    workload: Workload,
    reference: tuple[list[torch.Tensor], int],
    share: float,
    host: str,
    seed: int | None,
    tmp_path: Path,
) -> None:
    expected, demand = reference
    host_bytes = {"large": PLENTY, "small": demand // 8, "none": 0}[host]
    rig = new_rig(tmp_path, host_bytes, device=DelayedDevice(seed))
    with paged(rig, int(demand * share)) as session:
        results = workload(CPU)
        session.validate()
        rig.host.validate()
        rig.disk.validate()
        stats = session.stats()
        assert (rig.host.locked_bytes > 0) == (host != "none")
        assert (rig.disk.writes > 0) == (host != "large")
    assert same_bits(results, expected)
    assert rig.device.violations == []
    assert rig.device.under_way == 0
    assert stats.evictions > 0
    assert stats.fetches > 0


@pytest.mark.parametrize("slabs", [0, 1, 3])
def test_host_memory_is_kept_to_the_slab_and_with_both_tiers_full_nothing_is_lost(slabs: int, tmp_path: Path) -> None:
    rig = new_rig(tmp_path, slabs * (64 << 10), disk_bytes=256 << 10)
    made: list[torch.Tensor] = []

    def make_too_much() -> None:
        for number in range(100):
            made.append(torch.full((5000,), float(number)))
            assert rig.host.locked_bytes <= slabs * (64 << 10)

    with paged(rig, 0) as session:
        with pytest.raises(StoreFullError, match="Nothing is lost"):
            make_too_much()
        stats = session.stats()
        assert stats.host_bytes // 20_000 == slabs * (64 << 10) // 20_000
        assert stats.disk_bytes > (200 << 10)
        session.validate()
        session.set_limit(PLENTY)
        assert [tensor.sum().item() for tensor in made] == [5000.0 * number for number in range(len(made))]
    assert rig.device.violations == []


# -- what happens without a wait --------------------------------------------------------------------------------------

Program = Callable[[DelayedDevice], list[torch.Tensor]]


def one_stream(_: DelayedDevice) -> list[torch.Tensor]:
    """A training with pages of a few staging buffers each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 128), nn.Tanh(), nn.Linear(128, 96), nn.Tanh(), nn.Linear(96, 64))
    updates = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(2):
        updates.zero_grad()
        loss = model(torch.randn(96, 96)).square().mean()
        loss.backward()
        updates.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def two_streams(device: DelayedDevice) -> list[torch.Tensor]:
    """One branch of each step runs on a side stream; the program orders the two as it must, and no more."""
    torch.manual_seed(0)
    side = device.user_stream("side")
    weights = [torch.randn(64, 64) / 8 for _ in range(2)]
    x = torch.randn(64, 64)
    for _ in range(4):
        device.order(device.main, side)
        with device.on(side):
            y = (x @ weights[1]).tanh()
        z = (x @ weights[0]).tanh()
        device.order(side, device.main)
        x = y + z
        for weight in weights:
            weight.mul_(0.9)
    return [x, *weights]


def lender(device: DelayedDevice) -> list[torch.Tensor]:
    """A side stream reads what the main stream made, the main stream waits for it, uses it again, and lets go of it."""
    torch.manual_seed(0)
    side = device.user_stream("side")
    results = []
    for _ in range(3):
        x = torch.randn(64, 64)
        device.order(device.main, side)
        with device.on(side):
            results.append(x.sum())
        device.order(side, device.main)
        results.append(x.mul(2).sum())
        del x
        with device.on(side):
            results.append(torch.randn(64, 64).sum())
    return results


def recorder(device: DelayedDevice) -> list[torch.Tensor]:
    """The main stream makes a tensor, tells the allocator that a side stream uses it, and lets go of it unordered."""
    torch.manual_seed(0)
    side = device.user_stream("side")
    results = []
    for _ in range(3):
        x = torch.randn(64, 64)
        device.keep_for(x.untyped_storage(), side)  # on a real device: x.record_stream(side)
        device.order(device.main, side)
        torch.randn(64, 64).mul(2)
        with device.on(side):
            results.append(x.sum())
        del x
    return results


def branches(device: DelayedDevice) -> list[torch.Tensor]:
    """Ten steps whose middle runs on a side stream; what it makes there is used on both."""
    torch.manual_seed(0)
    side = device.user_stream("side")
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
    updates = torch.optim.SGD(layers.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        updates.zero_grad()
        x = torch.randn(256, 64)
        for number, layer in enumerate(layers):
            device.order(device.main, side)
            with device.on(side if number in (2, 3) else device.main):
                x = torch.nn.functional.silu(layer(x)) * 2
            device.order(side, device.main)
        loss = x.square().mean()
        loss.backward()
        updates.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in layers.parameters())]


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("host_bytes", [PLENTY, 0])
def test_pages_are_recomputed_behind_what_they_are_made_from(
    host_bytes: int, seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "Speeds", lambda *_: Speeds(1e5, 1e5))
    expected = branches(DelayedDevice())
    rig = new_rig(tmp_path, host_bytes, device=DelayedDevice(seed))
    with paged(rig, 700_000, policy="planned") as session:
        results = branches(rig.device)
        session.validate()
        stats = session.stats()
    assert same_bits(results, expected)
    assert rig.device.violations == []
    assert stats.recomputes > 0
    assert stats.planned_steps > 0


def _made_unannounced(executor: StreamExecutor, entry: Entry, inputs: list[Entry], make: Callable[[], None]) -> None:
    use = executor._use_of(entry)
    with executor._device.on(use.home):
        executor.use(inputs)
        make()
    use.streams, use.arrived = {use.home}, None


@pytest.mark.parametrize(
    ("step", "without"),
    [("_let_finish", lambda *_: None), ("_catch_up", lambda *_: None), ("recompute", _made_unannounced)],
)
def test_without_a_wait_for_what_is_recomputed_the_device_notices(
    step: str, without: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "Speeds", lambda *_: Speeds(1e5, 1e5))
    monkeypatch.setattr(StreamExecutor, step, without)
    rig = new_rig(tmp_path, PLENTY)
    with paged(rig, 650_000, policy="planned"):  # so that each of the three happens to matter
        branches(rig.device)
    assert rig.device.violations


class Trusting(DelayedDevice):
    """Believes that every event is past."""

    def reached(self, event: Any) -> bool:
        return True


class Forgetful(DelayedDevice):
    """Forgets what the executor tells the allocator, not what the program tells it."""

    def keep_for(self, storage: torch.UntypedStorage, stream: Stream) -> None:
        if stream is not self.current_stream():
            super().keep_for(storage, stream)


def deaf(who: str, whom: str) -> Callable[[], DelayedDevice]:
    return partial(DelayedDevice, deaf=frozenset({(who, whom)}))


def _never_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staging buffers are filled again while they are still being emptied."""
    original = Staging._next_buffer

    def next_buffer(staging: Staging, nbytes: int) -> Any:
        staging._busy = [None, None]
        return original(staging, nbytes)

    monkeypatch.setattr(Staging, "_next_buffer", next_buffer)


def _writes_unwaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's device bytes are freed before its copy on disk is known to be good."""
    original = StreamExecutor.finish_evict

    def finish_evict(executor: StreamExecutor, entry: Entry) -> None:
        if entry.page in executor._copies:
            executor._copies[entry.page].writes = []
        original(executor, entry)

    monkeypatch.setattr(StreamExecutor, "finish_evict", finish_evict)


def _outcome(program: Program, rig: Rig, limit: int = 0) -> list[torch.Tensor] | Exception:
    try:
        with paged(rig, limit):
            return program(rig.device)
    except (PageLostError, StoreFullError) as error:
        return error


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("host_bytes", [PLENTY, 100_000, 0])
@pytest.mark.parametrize("program", [one_stream, two_streams, lender, recorder])
def test_with_every_wait_in_place_nothing_is_wrong(
    program: Program, host_bytes: int, seed: int | None, tmp_path: Path
) -> None:
    rig = new_rig(tmp_path, host_bytes, device=DelayedDevice(seed))
    expected = program(DelayedDevice())
    results = _outcome(program, rig)
    assert not isinstance(results, Exception)
    assert same_bits(results, expected)
    assert rig.device.violations == []


@pytest.mark.parametrize(
    ("program", "host_bytes", "device", "says"),
    [
        pytest.param(one_stream, PLENTY, deaf(OUT, USER), "out copies from", id="copy down before the last use"),
        pytest.param(two_streams, PLENTY, deaf(OUT, USER), "out copies from", id="the same with two streams"),
        pytest.param(one_stream, PLENTY, deaf(USER, OUT), "given back while out", id="memory freed before copy down"),
        pytest.param(two_streams, PLENTY, Forgetful, "given back while", id="memory freed before others' uses"),
        pytest.param(one_stream, PLENTY, deaf(IN, USER), "in copies to", id="copy up into memory still in use"),
        pytest.param(one_stream, PLENTY, deaf(USER, IN), "which in may be writing", id="use before arrival"),
        pytest.param(two_streams, PLENTY, deaf(USER, IN), "which in may be writing", id="use elsewhere before arrival"),
        pytest.param(one_stream, 0, deaf(USER, IN), "which in may be writing", id="use before arrival from disk"),
        pytest.param(one_stream, 0, deaf(OUT, USER), "out copies from", id="copy to disk before the last use"),
        pytest.param(one_stream, 0, deaf(HOST, OUT), "the host writes to disk", id="disk written before copy down"),
        pytest.param(one_stream, 0, deaf(HOST, IN), "the host reads from disk", id="disk read into a busy buffer"),
        pytest.param(recorder, PLENTY, Forgetful, "given back while side", id="record_stream lost with the memory"),
    ],
)
def test_without_a_wait_the_device_notices(
    program: Program, host_bytes: int, device: Callable[[], DelayedDevice], says: str, tmp_path: Path
) -> None:
    rig = new_rig(tmp_path, host_bytes, device=device())
    _outcome(program, rig)
    assert any(says in violation for violation in rig.device.violations), rig.device.violations[:3]


@pytest.mark.parametrize(
    ("who", "whom", "host_bytes"),
    [(OUT, USER, PLENTY), (USER, OUT, PLENTY), (IN, USER, PLENTY), (USER, IN, PLENTY), (USER, IN, 0), (HOST, OUT, 0)],
)
def test_without_a_wait_the_numbers_are_wrong(who: str, whom: str, host_bytes: int, tmp_path: Path) -> None:
    rig = new_rig(tmp_path, host_bytes, device=deaf(who, whom)())
    results = _outcome(one_stream, rig)
    assert isinstance(results, Exception) or not same_bits(results, one_stream(DelayedDevice()))


@pytest.mark.parametrize("mutate", [None, _never_busy, _writes_unwaited])
def test_without_a_wait_for_the_disk_the_numbers_are_wrong(
    mutate: Callable[[pytest.MonkeyPatch], None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few writes fail, too: whoever does not wait for them loses what they were to save."""
    rig = new_rig(tmp_path, 0)
    rig.disk.failing_writes = {10, 30}
    if mutate is not None:
        mutate(monkeypatch)
    results = _outcome(one_stream, rig, limit=250_000)
    is_right = not isinstance(results, Exception) and same_bits(results, one_stream(DelayedDevice()))
    assert is_right == (mutate is None), results


# -- the executor by hand ---------------------------------------------------------------------------------------------


class Pages:
    """Pages of an executor that nobody else moves."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.executor, self.device, self.host = rig.executor, rig.device, rig.host
        self._registry = Registry()

    def new(self, nbytes: int = 40_000, seed: int = 1) -> tuple[torch.Tensor, Entry]:
        """A tensor made on the current stream."""
        torch.manual_seed(seed)
        tensor = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
        self.device.created(tensor)
        entry = self._registry.add(tensor.untyped_storage(), None)
        self.executor.use((entry,))
        return tensor, entry

    def read(self, tensor: torch.Tensor, entry: Entry) -> torch.Tensor:
        """As an operation on the current stream finds it."""
        self.executor.use((entry,))
        self.device.used(tensor, False)
        return tensor.clone()

    def write(self, tensor: torch.Tensor, entry: Entry) -> None:
        self.executor.use((entry,))
        self.device.used(tensor, True)
        tensor.add_(1)
        self.executor.discard(entry)

    def evict(self, entry: Entry, tier: Tier = Tier.HOST) -> None:
        self.executor.start_evict(entry, tier)
        self.executor.finish_evict(entry)
        self.executor.release(entry)

    def fetch(self, entry: Entry) -> None:
        self.executor.start_fetch(entry)
        self.executor.finish_fetch(entry)

    def used_bytes(self) -> int:
        """Bytes of lower copies, once the device has done all that it was asked for."""
        for stream in (*self.device._sides, self.device.main):
            self.device.synchronize(self.device.record(stream))
        self.host.release(self.executor._reserve_host(1))
        return self.host.used_bytes + self.rig.disk.used_bytes


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    pages = Pages(new_rig(tmp_path, 200_000, slab_bytes=50_000))
    yield pages
    pages.executor.close()
    assert pages.device.violations == []
    assert pages.device.under_way == 0


TIERS = pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])


def test_the_host_never_waits_for_host_memory(pages: Pages) -> None:
    waits: list[str] = []
    pages.device.hooks.append(lambda name: waits.append(name) if name == "synchronize" else None)
    tensor, entry = pages.new()
    expected = tensor.clone()
    for _ in range(3):
        pages.evict(entry)
        pages.fetch(entry)
    assert torch.equal(pages.read(tensor, entry), expected)
    assert waits == []


@TIERS
def test_a_page_used_on_two_streams_leaves_after_both(pages: Pages, tier: Tier) -> None:
    tensor, entry = pages.new()
    side = pages.device.user_stream("side")
    pages.device.order(pages.device.main, side)
    with pages.device.on(side):
        pages.write(tensor, entry)
    expected = tensor.clone()
    pages.evict(entry, tier)  # by the main stream, which knows nothing of what the other does
    pages.fetch(entry)
    assert torch.equal(pages.read(tensor, entry), expected)


@pytest.mark.parametrize("waits", [True, False])
def test_a_page_read_elsewhere_after_it_was_copied_leaves_after_that(
    waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not waits:
        monkeypatch.setattr(StreamExecutor, "_let_finish", lambda *_: None)
    pages = Pages(new_rig(tmp_path, PLENTY))
    tensor, entry = pages.new()
    side = pages.device.user_stream("side")
    pages.device.order(pages.device.main, side)
    pages.executor.start_evict(entry, Tier.HOST)
    pages.executor.finish_evict(entry)  # clean: still there
    with pages.device.on(side):
        pages.read(tensor, entry)
    pages.executor.release(entry)
    pages.new()
    pages.executor.close()
    assert (pages.device.violations == []) == waits


@TIERS
def test_a_fetched_page_is_there_for_every_stream(pages: Pages, tier: Tier) -> None:
    tensor, entry = pages.new()
    expected = tensor.clone()
    pages.evict(entry, tier)
    pages.fetch(entry)
    for name in ("one", "two"):
        with pages.device.on(pages.device.user_stream(name)):
            assert torch.equal(pages.read(tensor, entry), expected)
    pages.evict(entry, tier)


def test_of_many_copies_under_way_only_the_next_in_each_direction_is_asked(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [pages.new(4_000, seed) for seed in range(12)]
    for _, entry in made[:6]:
        pages.evict(entry)
    for _, entry in made[:6]:
        pages.executor.start_fetch(entry)
    for _, entry in made[6:]:
        pages.executor.start_evict(entry, Tier.HOST)
    asked: list[Any] = []
    reached = pages.device.reached
    monkeypatch.setattr(pages.device, "reached", lambda event: asked.append(event) or reached(event))
    assert pages.executor.landed() == []
    assert len(asked) == 2
    done = pages.executor._copies[made[2][1].page].read
    assert done is not None
    pages.device.synchronize(done)
    assert pages.executor.landed() == [entry.page for _, entry in made[:3]]
    for _, entry in made[:6]:
        pages.executor.finish_fetch(entry)
    for _, entry in made[6:]:
        pages.executor.finish_evict(entry)


@pytest.mark.parametrize("told", [True, False])
def test_the_allocator_is_told_who_uses_memory_of_unknown_origin(told: bool, tmp_path: Path) -> None:
    """A tensor older than the session, first seen on a side stream: its memory is the main stream's."""
    pages = Pages(new_rig(tmp_path, PLENTY))
    tensor = torch.ones(40_000, dtype=torch.uint8)
    with pages.device.on(pages.device.user_stream("side")):
        entry = pages._registry.add(tensor.untyped_storage(), None)
        if told:
            pages.executor.adopt(entry)
        assert pages.read(tensor, entry).sum() == 40_000
        pages.evict(entry)
    pages.fetch(entry)
    assert pages.read(tensor, entry).sum() == 40_000
    assert (pages.device.violations == []) == told
    pages.executor.close()


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("up", [False, True])
def test_a_page_under_way_must_be_held(up: bool, held: bool, tmp_path: Path) -> None:
    pages = Pages(new_rig(tmp_path, PLENTY))
    tensor, entry = pages.new()
    if up:
        pages.evict(entry)
        pages.executor.start_fetch(entry)
    else:
        pages.executor.start_evict(entry, Tier.HOST)
    if not held:
        pages.executor._copies[entry.page].storage = None
    del tensor
    pages.new()  # may get its memory
    pages.executor.close()
    assert (pages.device.violations == []) == held


@TIERS
def test_a_page_under_way_cannot_die(pages: Pages, tier: Tier) -> None:
    tensor, entry = pages.new()
    pages.executor.start_evict(entry, tier)
    del tensor
    assert entry() is not None
    pages.executor.finish_evict(entry)
    assert entry() is None
    pages.executor.release(entry)
    pages.executor.discard(entry)
    pages.executor.forget(entry)
    pages.new()  # gets its memory


@TIERS
def test_a_page_on_its_way_up_cannot_die(pages: Pages, tier: Tier) -> None:
    tensor, entry = pages.new()
    pages.evict(entry, tier)
    pages.executor.start_fetch(entry)
    del tensor
    assert entry() is not None
    pages.executor.finish_fetch(entry)
    assert entry() is None
    pages.executor.discard(entry)
    pages.executor.forget(entry)
    pages.new()


@TIERS
def test_a_page_that_died_before_its_turn_is_skipped(pages: Pages, tier: Tier) -> None:
    tensor, entry = pages.new()
    pages.evict(entry, tier)
    del tensor
    pages.fetch(entry)
    pages.executor.discard(entry)
    pages.executor.forget(entry)
    tensor, entry = pages.new()
    del tensor
    pages.evict(entry, tier)
    pages.executor.discard(entry)
    pages.executor.forget(entry)
    assert pages.used_bytes() == 0


def test_a_slot_is_not_used_again_while_it_is_read(pages: Pages) -> None:
    tensor, entry = pages.new()
    pages.evict(entry)
    pages.executor.start_fetch(entry)
    pages.executor.discard(entry)
    assert pages.host.used_bytes > 0
    pages.executor.close()
    del tensor


def test_a_slot_is_not_used_again_although_its_page_is_gone(pages: Pages) -> None:
    """Fetched, dropped as clean, dead: all that is left of it is a copy up, of which the host has not heard yet."""
    tensor, entry = pages.new()
    pages.evict(entry)
    pages.fetch(entry)
    pages.executor.release(entry)
    del tensor
    pages.executor.discard(entry)
    pages.executor.forget(entry)
    assert pages.host.used_bytes > 0
    pages.executor._reserve_host(160_000)
    assert pages.host.used_bytes == 163_840


def test_a_slot_is_free_once_the_device_has_read_it(pages: Pages) -> None:
    tensor, entry = pages.new()
    pages.evict(entry)
    pages.fetch(entry)
    pages.device.synchronize(pages.device.record(pages.device.main))
    pages.write(tensor, entry)
    assert pages.host.used_bytes == 0


def test_fetched_memory_is_at_home_where_the_first_was(pages: Pages) -> None:
    """The program lets go of a tensor as it must where it made it, wherever the page was fetched to be used."""
    tensor, entry = pages.new()
    pages.evict(entry)
    with pages.device.on(pages.device.user_stream("side")):
        pages.fetch(entry)
        pages.read(tensor, entry)
    assert pages.device._memory(tensor.untyped_storage()).home is pages.device.main


@pytest.mark.parametrize("device", [DelayedDevice, Forgetful])
def test_fetched_memory_used_elsewhere_is_kept_when_the_program_lets_go(
    device: Callable[[], DelayedDevice], tmp_path: Path
) -> None:
    pages = Pages(new_rig(tmp_path, PLENTY, device=device()))
    tensor, entry = pages.new()
    side = pages.device.user_stream("side")
    pages.device.keep_for(tensor.untyped_storage(), side)  # as the program's record_stream does
    pages.evict(entry)
    pages.fetch(entry)
    with pages.device.on(side):
        pages.read(tensor, entry)
    del tensor
    pages.new()
    assert (pages.device.violations == []) == (device is DelayedDevice)
    pages.executor.close()


def test_the_lack_of_a_wait_before_a_slot_is_used_again_is_noticed(tmp_path: Path) -> None:
    pages = Pages(new_rig(tmp_path, 200_000, slab_bytes=50_000, device=Trusting()))
    _tensor, entry = pages.new()
    pages.evict(entry)
    pages.executor.start_fetch(entry)
    pages.executor.discard(entry)
    assert "the host gives back" in pages.device.violations[0]
    pages.executor.close()


def test_host_memory_that_is_full_of_slots_under_way_is_waited_for(tmp_path: Path) -> None:
    pages = Pages(new_rig(tmp_path, 45_056, slab_bytes=45_056))
    first, its_entry = pages.new()
    expected = first.clone()
    pages.evict(its_entry)
    pages.executor.start_fetch(its_entry)
    pages.executor.discard(its_entry)  # as after a write: but here, the copy up is still under way
    second, entry = pages.new(seed=2)
    other = second.clone()
    pages.evict(entry)
    pages.fetch(entry)
    assert torch.equal(pages.read(second, entry), other)
    pages.device.synchronize(pages.device.record(pages.device._sides[1]))
    assert torch.equal(first, expected)
    assert pages.executor.stall_s > 0
    pages.executor.close()
    assert pages.device.violations == []


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_full_tier_changes_nothing(pages: Pages) -> None:
    tensor, entry = pages.new(nbytes=300_000)
    expected = tensor.clone()
    pages.rig.disk.full = True
    for tier in (Tier.HOST, Tier.DISK):
        with pytest.raises(StoreFullError):
            pages.executor.start_evict(entry, tier)
    assert torch.equal(pages.read(tensor, entry), expected)
    assert pages.used_bytes() == 0


def test_a_disk_full_half_way_through_a_page_gives_the_first_half_back(tmp_path: Path) -> None:
    pages = Pages(new_rig(tmp_path, 0, disk_bytes=32 << 10))
    _tensor, entry = pages.new()
    with pytest.raises(StoreFullError):
        pages.executor.start_evict(entry, Tier.DISK)
    assert pages.rig.disk.used_bytes == 0
    pages.executor.close()


def test_a_failed_write_leaves_the_page_where_it_was(pages: Pages) -> None:
    tensor, entry = pages.new()
    expected = tensor.clone()
    pages.rig.disk.failing_writes = {0}
    pages.executor.start_evict(entry, Tier.DISK)
    with pytest.raises(StoreFullError):
        pages.executor.finish_evict(entry)
    assert pages.rig.disk.used_bytes == 0
    assert torch.equal(pages.read(tensor, entry), expected)
    pages.evict(entry, Tier.DISK)
    pages.fetch(entry)
    assert torch.equal(pages.read(tensor, entry), expected)
    del tensor
    assert entry() is None


def test_a_page_that_cannot_be_read_stays_evicted(pages: Pages) -> None:
    tensor, entry = pages.new()
    expected = tensor.clone()
    pages.evict(entry, Tier.DISK)
    pages.rig.disk.failing_reads = {0}
    pages.executor.start_fetch(entry)
    with pytest.raises(PageLostError):
        pages.executor.finish_fetch(entry)
    assert storage_nbytes(tensor.untyped_storage()) == 0
    pages.fetch(entry)
    assert torch.equal(pages.read(tensor, entry), expected)
    del tensor
    assert entry() is None


@TIERS
def test_a_device_without_room_leaves_the_page_evicted(pages: Pages, tier: Tier) -> None:
    tensor, entry = pages.new()
    expected = tensor.clone()
    pages.evict(entry, tier)
    pages.device.refusals = 1
    with pytest.raises(DeviceFull):
        pages.executor.start_fetch(entry)
    assert storage_nbytes(tensor.untyped_storage()) == 0
    pages.fetch(entry)
    assert torch.equal(pages.read(tensor, entry), expected)


class Interrupt:
    """Interrupts the program at the nth call of the device."""

    def __init__(self, device: DelayedDevice, nth: int) -> None:
        self._left = nth
        self.came = False
        device.hooks.append(self)

    def __call__(self, _: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.came = True
            raise KeyboardInterrupt


@TIERS
@pytest.mark.parametrize("nth", range(1, 16))
def test_an_interrupt_on_the_way_down(pages: Pages, tier: Tier, nth: int) -> None:
    tensor, entry = pages.new()
    expected = tensor.clone()
    interrupt = Interrupt(pages.device, nth)
    try:
        pages.executor.start_evict(entry, tier)
        pages.executor.finish_evict(entry)
    except KeyboardInterrupt:
        assert pages.used_bytes() == 0
        assert torch.equal(tensor, expected)
        pages.executor.start_evict(entry, tier)
        pages.executor.finish_evict(entry)
    pages.device.hooks.remove(interrupt)
    pages.executor.release(entry)
    pages.fetch(entry)
    assert torch.equal(pages.read(tensor, entry), expected)
    del tensor
    assert entry() is None


@TIERS
@pytest.mark.parametrize("nth", range(1, 16))
def test_an_interrupt_on_the_way_up(pages: Pages, tier: Tier, nth: int) -> None:
    tensor, entry = pages.new()
    expected = tensor.clone()
    pages.evict(entry, tier)
    interrupt = Interrupt(pages.device, nth)
    try:
        pages.executor.start_fetch(entry)
    except KeyboardInterrupt:
        assert storage_nbytes(tensor.untyped_storage()) == 0
        pages.executor.start_fetch(entry)
    pages.device.hooks.remove(interrupt)
    pages.executor.finish_fetch(entry)
    assert torch.equal(pages.read(tensor, entry), expected)
    pages.evict(entry, tier)
    pages.fetch(entry)
    assert torch.equal(pages.read(tensor, entry), expected)


@TIERS
def test_steps_that_an_interrupt_hid_from_the_pager_can_be_repeated(pages: Pages, tier: Tier) -> None:
    tensor, entry = pages.new()
    expected = tensor.clone()
    pages.executor.start_evict(entry, tier)
    pages.evict(entry, tier)
    pages.executor.release(entry)
    pages.executor.start_fetch(entry)
    pages.fetch(entry)
    assert torch.equal(pages.read(tensor, entry), expected)
    pages.executor.start_evict(entry, tier)
    pages.executor.finish_evict(entry)  # and the pager takes the page for resident, without a lower copy
    pages.write(tensor, entry)
    del tensor
    pages.executor.forget(entry)
    assert pages.used_bytes() == 0


# -- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host_bytes", [PLENTY, 100_000, 0])
def test_an_interrupted_step_leaves_books_that_add_up(host_bytes: int, tmp_path: Path) -> None:
    expected = one_stream(DelayedDevice())
    for nth in (3, 50, 121, 122, 123, 124, 300, 487, 700):
        rig = new_rig(tmp_path, host_bytes)
        with paged(rig, 0) as session:
            interrupt = Interrupt(rig.device, nth)
            try:
                one_stream(rig.device)
            except KeyboardInterrupt:
                session.validate()
            assert interrupt.came
            rig.device.hooks.remove(interrupt)
            results = one_stream(rig.device)
            session.validate()
        assert same_bits(results, expected)
        assert rig.device.violations == []


def test_a_full_device_makes_room_for_a_fetch(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, PLENTY)
    with paged(rig, 1 << 20) as session:
        held = torch.ones(64, 64)
        x = torch.arange(4096.0)
        session.reclaim()
        held.add_(1)
        rig.device.refusals = 1
        total = x.sum()
        assert session.stats().evictions == 3
    assert total == torch.arange(4096.0).sum()
    assert held.sum() == 2 * 64 * 64


def test_host_memory_refused_by_the_system_sends_pages_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = new_rig(tmp_path, PLENTY)

    def page_lock(nbytes: int) -> torch.Tensor:
        if rig.device.slabs:
            raise RuntimeError("no more page-locked memory")
        return rig.device.page_lock(nbytes)

    monkeypatch.setattr(rig.host, "_page_lock", page_lock)
    with paged(rig, 0) as session:
        results = one_stream(rig.device)
        session.validate()
    assert rig.disk.writes > 0
    assert same_bits(results, one_stream(DelayedDevice()))
    assert rig.device.violations == []


@pytest.mark.parametrize("device", [DelayedDevice, deaf(HOST, IN)], ids=["waits", "does not wait"])
def test_after_the_session_pages_are_there_for_every_stream(
    device: Callable[[], DelayedDevice], tmp_path: Path
) -> None:
    rig = new_rig(tmp_path, PLENTY, device=device())
    with paged(rig, PLENTY) as session:
        x = torch.ones(4096)
        session.reclaim()
    side = rig.device.user_stream("side")
    with rig.device.on(side), rig.device.watch():
        assert x.sum() == 4096
    assert (rig.device.violations == []) == (device is DelayedDevice)
