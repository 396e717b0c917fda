"""Steps that follow a plan on a device with streams: the native interposer moves pages, and Python hears of it."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import torch_lms
from tests import accelerator, carrying
from tests.campaign.found import ROOT
from tests.carrying import LIMIT, WARM_UP, Carrying, again_and_again
from tests.fault_rig import backend_now, check_books
from tests.injection import counted
from tests.ways import IS_NATIVE
from torch_lms.capture.mode import LmsMode
from torch_lms.engine import Engine, PlanCache
from torch_lms.native.load import find
from torch_lms.runtime.native_streams import NativeStreamExecutor
from torch_lms.timeline import Lane

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason="no native interposer here")

MIN_SIZE = 1024
STEPS = 4


def test_operations_on_pages_that_are_away_pass_natively(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU()) for _ in range(20))).to(device)
    update = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    x = torch.ones(64, 64, device=device)
    seen: Counter[str] = Counter()

    def run(mode: LmsMode, func: Any, *given: Any) -> Any:
        seen[str(func)] += 1
        return whole_run(mode, func, *given)

    whole_run = LmsMode.run
    monkeypatch.setattr(LmsMode, "run", run)

    def step() -> None:
        model(x).mean().backward()
        update.step()
        update.zero_grad()

    with torch_lms.session(limit="64GB", min_size=MIN_SIZE, device=device) as lms:
        step()
        step()
        demand = lms.stats().demand_bytes
    with torch_lms.session(limit=demand // 2, min_size=MIN_SIZE, recompute=False, device=device) as lms:
        for _ in range(4):
            step()
        lms.reset_stats()
        seen.clear()
        for _ in range(STEPS):
            step()
        stats, ops = lms.stats(), len(lms.trace().ops)
    assert stats.planned_steps == STEPS
    assert stats.fetches > 20 * STEPS
    assert seen.total() < 0.1 * STEPS * ops, seen.most_common(3)


@pytest.mark.parametrize("schedule", ["eager", "mixed", "lazy"])
def test_operations_without_a_plan_pass_natively(
    schedule: str, module: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch, expected: torch.Tensor
) -> None:
    """Pages leave and come by an outlook, and the record of the step says when each operation ran on the device."""
    module.schedule(schedule, 5)
    monkeypatch.setattr(PlanCache, "begin_step", lambda *_: [])
    with carrying.carrying(device, expected) as session, counted(Engine, "op_begins") as told:
        assert all(map(expected.equal, session.run(STEPS)))
        stats, trace, timeline = session.lms.stats(), session.lms.trace(), session.lms.timeline()
    assert stats.planned_steps == 0
    assert stats.evictions > 20 * STEPS
    assert stats.peak_resident_bytes <= LIMIT
    assert told.calls < 0.35 * STEPS * len(trace.ops)
    assert len(timeline.levels) == len(trace.ops)
    computed = sorted((span for span in timeline.spans if span.lane is Lane.COMPUTE), key=lambda span: span.start_s)
    assert sum(op.seconds for op in trace.ops) <= computed[-1].end_s - computed[0].start_s
    assert sum(op.seconds > 0 for op in trace.ops) > 0.8 * len(trace.ops)


@pytest.fixture
def expected() -> torch.Tensor:
    return carrying.expected()


@pytest.fixture(params=["mixed", "lazy"])
def session(
    request: pytest.FixtureRequest, module: ModuleType, device: torch.device, expected: torch.Tensor
) -> Iterator[Carrying]:
    module.schedule(request.param, 5)
    with carrying.carrying(device, expected) as session:
        yield session


def host_bytes() -> int:
    """Of host memory, by pages."""
    executor = backend_now().executor
    assert isinstance(executor, NativeStreamExecutor)
    return executor._host.used_bytes - executor.lanes.free_bytes()


def test_python_performs_none_of_the_moves(session: Carrying, expected: torch.Tensor) -> None:
    assert all(map(expected.equal, session.run(STEPS)))
    stats = session.lms.stats()
    assert stats.planned_steps == STEPS
    assert stats.diverged_steps == 0
    assert stats.evictions > 20 * STEPS
    assert session.performed == 0


def test_a_page_takes_few_calls_of_the_driver(session: Carrying, module: ModuleType) -> None:
    """Each keeps the host of a GPU busy for microseconds. Of the first two, a page that leaves and comes back took 20
    before moments were recorded once for all who ask for them.
    """
    module.take_calls()
    session.run(STEPS)
    calls, stats = module.take_calls(), session.lms.stats()
    assert stats.planned_steps == STEPS
    assert calls["record"] + calls["block"] < 16 * stats.evictions, calls
    assert calls["query"] < 24 * stats.evictions, calls


@pytest.mark.parametrize("schedule", ["mixed", "lazy"])
def test_python_recomputes_nothing(
    schedule: str, module: ModuleType, device: torch.device, expected: torch.Tensor
) -> None:
    """Chains of operations, one of which writes in place."""
    module.schedule(schedule, 5)
    with carrying.carrying(device, expected, recompute=True) as session:
        assert all(map(expected.equal, session.run(STEPS)))
        stats = session.lms.stats()
        recomputed = [span for span in session.lms.timeline().spans if span.name == "recompute"]
    assert stats.planned_steps == STEPS
    assert stats.recomputes > 10 * STEPS
    assert len(recomputed) == stats.recomputes / STEPS
    assert session.performed == 0


def test_what_is_recorded_is_as_if_python_had_moved_them(session: Carrying) -> None:
    session.run(2)
    before = session.lms.stats()
    session.run()
    trace, timeline, after = session.lms.trace(), session.lms.timeline(), session.lms.stats()
    assert [op.name for op in trace.ops].count("aten::mul_.Tensor") == 40
    assert len(timeline.levels) == len(trace.ops)
    assert max(level.resident for level in timeline.levels) <= LIMIT
    assert max(level.host for level in timeline.levels) > LIMIT / 2
    made = {lane: [span for span in timeline.spans if span.lane is lane] for lane in Lane}
    assert abs(len(made[Lane.D2H]) - (after.evictions - before.evictions)) <= 4  # some may end in the step that follows
    assert abs(len(made[Lane.H2D]) - (after.fetches - before.fetches)) <= 4
    computed = sorted(made[Lane.COMPUTE], key=lambda span: span.start_s)
    assert all(one.start_s <= other.start_s for one, other in pairwise(computed))
    began_s, ended_s = computed[0].start_s, computed[-1].end_s
    assert 0 < sum(op.seconds for op in trace.ops) <= ended_s - began_s
    copies = made[Lane.D2H] + made[Lane.H2D]
    assert all(span.start_s < span.end_s for span in copies)
    assert sum(began_s <= span.start_s and span.end_s <= ended_s for span in copies) >= len(copies) - 8


def test_room_in_host_memory_is_that_of_the_pages_there(session: Carrying) -> None:
    """Pages are born, leave, and die, and Python has never heard of them: their room is given back."""
    rooms = []
    for _ in range(6):
        session.run()
        session.lms.reclaim()
        torch.accelerator.synchronize()
        rooms.append(host_bytes())
    assert len(set(rooms[1:])) == 1, rooms


def test_what_fails_once_is_tried_again(session: Carrying, expected: torch.Tensor) -> None:
    native = find().native
    assert native is not None
    for _ in range(4):
        assert all(map(expected.equal, session.run(1, native.fail_next_copy)))
        check_books()
        assert all(map(expected.equal, session.run()))
    assert session.performed > 0
    assert session.lms.stats().planned_steps >= 4


def run_with_less_memory(session: Carrying, expected: torch.Tensor, module: ModuleType) -> None:
    """Steps on a device that has half of the limit, and two with all of its memory again."""
    torch.accelerator.synchronize()
    module.empty_cache()
    module.set_capacity(module.memory_reserved() + LIMIT // 2)
    assert all(map(expected.equal, session.run(WARM_UP)))
    module.set_capacity(accelerator.CAPACITY)
    assert all(map(expected.equal, session.run(2)))


def test_a_device_with_less_memory_than_the_limit(
    session: Carrying, expected: torch.Tensor, module: ModuleType
) -> None:
    """Memory runs out in the middle of moves; then the limit is lower."""
    run_with_less_memory(session, expected, module)
    assert session.lms.stats().planned_steps > 0


def test_memory_runs_out_without_a_plan(
    module: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch, expected: torch.Tensor
) -> None:
    """In an operation that passes natively, or in a move: it runs again, and from then on the limit is lower."""
    monkeypatch.setattr(PlanCache, "begin_step", lambda *_: [])
    with carrying.carrying(device, expected) as session:
        run_with_less_memory(session, expected, module)
        assert session.lms.stats().limit_bytes < LIMIT


def test_pages_of_another_stream(
    session: Carrying, expected: torch.Tensor, module: ModuleType, device: torch.device
) -> None:
    """They come back to their home, and are used elsewhere."""
    main, side = torch.accelerator.current_stream(), module.Stream(device)
    for _ in range(WARM_UP):
        made = [torch.full((64, 64), float(number), device=device) for number in range(12)]
        with module.stream(side):
            side.wait_stream(main)
            others = [page * 2 for page in made]
        found = session.run()
        main.wait_stream(side)
        total = torch.stack([page + other for page, other in zip(made, others, strict=True)]).sum()
        assert total.item() == 64 * 64 * 3 * sum(range(12))
        assert expected.equal(found[0])


def test_another_thread_takes_over_meanwhile(session: Carrying, expected: torch.Tensor) -> None:
    """It waits for the moves under way; then the step goes on without a plan, or with it."""
    with again_and_again(session.lms.validate):
        found = session.run(6)
    assert all(map(expected.equal, found))


def test_the_benchmark_of_what_the_host_takes(tmp_path: Path) -> None:
    found = tmp_path / "short.json"
    asked = ["--device", accelerator.NAME, "--rounds", "2", "--output", str(found)]
    command = [sys.executable, "benchmarks/short.py", *asked]
    done = subprocess.run(
        command, cwd=ROOT, env=accelerator.autoloading(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    us = json.loads(found.read_text())["us"]
    assert us.keys() == {"python", "native"}
    assert us["native"].keys() == {"operation", "action", "recomputation", "operation without a plan"}


@pytest.mark.parametrize("host_limit", [0, LIMIT // 2])
def test_a_disk_behind_host_memory(
    host_limit: int, device: torch.device, expected: torch.Tensor, module: ModuleType
) -> None:
    """Python copies what goes there."""
    module.schedule("mixed", 7)
    with torch_lms.session(
        limit=LIMIT, min_size=MIN_SIZE, device=device, recompute=False, host_limit=host_limit
    ) as lms:
        session = Carrying(lms, device)
        assert all(map(expected.equal, session.run(WARM_UP + 3)))
        assert lms.stats().planned_steps >= 3
        assert max(level.disk for level in lms.timeline().levels) > 0
