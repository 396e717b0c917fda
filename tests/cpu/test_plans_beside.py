"""Plans are made beside the program, in a process of its own: what users have, where all other tests plan at once."""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import planning
import pytest
from bits import same_bits
from traffic import MIN_SIZE, demand_of, one_thread, training

import torch_lms
from torch_lms.demo.train import UNet
from torch_lms.engine import MadePlan, PlanCache, Speeds, engine
from torch_lms.runtime import api, plans_beside
from torch_lms.runtime.plans_beside import PlansBeside

MAKE = partial(training, partial(UNet, 3, (4, 8, 16)), (1, 1, 32, 32, 32))


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plan as for users, but for every step that comes twice, however little it lost."""
    monkeypatch.delenv("TORCH_LMS_PLANNING", raising=False)
    monkeypatch.setattr(PlanCache, "_pays", lambda *_: True)
    with one_thread():
        yield
    for thread in threading.enumerate():  # what ends a little later must not end in the test that comes
        if thread.name == "torch-lms-plans":
            thread.join(timeout=10)


def plans() -> PlanCache:
    assert api._running is not None
    found = api._running._session._table.backends[0].plans
    assert found is not None
    return found


def planner() -> PlansBeside:
    found = plans()._planner
    assert isinstance(found, PlansBeside)
    return found


@pytest.fixture
def limit() -> int:
    return demand_of(MAKE) // 2


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_steps_go_on_until_the_plan_is_there(limit: int) -> None:
    _, step = MAKE()
    expected = [step() for _ in range(8)]
    _, step = MAKE()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        results = [step() for _ in range(4)]
        plans().wait()
        results += [step() for _ in range(4)]
        stats = lms.stats()
        lms.validate()
    assert same_bits(results, expected)
    assert stats.policy == "planned"
    assert stats.planned_steps >= 3
    assert stats.planning_s > 0


def test_a_quick_plan_comes_first(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "Speeds", lambda *_: Speeds(1e5, 1e5))  # whatever can be recomputed is
    _, step = MAKE()
    expected = [step() for _ in range(12)]
    _, step = MAKE()
    results, made = [], []
    take_in = PlanCache._take_in

    def told(cache: PlanCache, plan: MadePlan) -> None:
        made.append(plan.plan)
        take_in(cache, plan)

    monkeypatch.setattr(PlanCache, "_take_in", told)
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        for _ in range(4):
            results += [step() for _ in range(3)]
            plans().wait()
        stats = lms.stats()
        lms.validate()
    assert same_bits(results, expected)
    assert stats.replans == 1
    assert stats.planned_steps >= 8
    first, second = made
    assert any(first.evicts)
    assert not first.recomputations
    assert second.recomputations
    assert stats.recomputes > 0
    assert first.trace.seconds != second.trace.seconds
    assert [op.name for op in first.trace.ops] == [op.name for op in second.trace.ops]


def test_a_plan_comes_into_force_in_the_midst_of_a_step(limit: int) -> None:
    model, step = MAKE()

    def wait(*_: object) -> None:
        if len(arrived) == 3:
            plans().wait()

    arrived: list[str] = []
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        list(model.modules())[-1].register_forward_hook(wait)
        for _ in range(3):
            step()
            arrived.append(lms.stats().policy)
        assert plans().kinds == []
        lms.reset_stats()
        step()
        stats = lms.stats()
    assert stats.planned_steps == 1
    assert stats.evicted_bytes > 0


def test_the_process_ends_with_the_session(limit: int) -> None:
    _, step = MAKE()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE):
        for _ in range(4):
            step()
        plans().wait()
        process = planner()._process
        assert process is not None
        assert process.poll() is None
    assert process.poll() is not None


def _fails(limit: int, harm: Callable[[], None], caplog: pytest.LogCaptureFixture) -> None:
    """After ``harm`` nothing is planned; that is told once, and steps go on."""
    _, step = MAKE()
    with caplog.at_level(logging.WARNING, "torch_lms"), torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        step()
        step()  # the first that is seen from its beginning
        harm()
        for _ in range(3):
            step()
        plans().wait()
        for _ in range(3):
            step()
        assert lms.stats().planned_steps == 0
        lms.validate()
    assert [record.message.count("planning failed") for record in caplog.records] == [1]


def test_a_process_that_died_is_told_once(limit: int, caplog: pytest.LogCaptureFixture) -> None:
    def kill() -> None:
        deadline = time.monotonic() + 60
        while planner()._process is None and time.monotonic() < deadline:
            time.sleep(0.01)
        planner()._process.kill()  # type: ignore[union-attr]

    _fails(limit, kill, caplog)


def test_a_planner_that_raises_is_told_once(
    limit: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = plans_beside._PROGRAM.replace("serve()", "serve.__globals__.pop('Speeds'); serve()")
    monkeypatch.setattr(plans_beside, "_PROGRAM", program)
    _fails(limit, lambda: None, caplog)


def test_no_process_is_told_once(limit: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    _fails(limit, lambda: None, caplog)


def test_a_fork_does_not_end_it(limit: int) -> None:
    _, step = MAKE()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        step()
        step()
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        step()
        plans().wait()
        step()
        step()
        assert lms.stats().planned_steps >= 1


SCRIPT = f"""
import os, sys, time
sys.path[:0] = {sys.path!r}
import torch
from test_plans_beside import MAKE, planner
from torch_lms.engine import PlanCache
import torch_lms
torch.set_num_threads(1)
PlanCache._pays = lambda *_: True
torch_lms.enable(limit=2_000_000, min_size=4096)
_, step = MAKE()
for _ in range(3):
    step()
while planner()._process is None:
    time.sleep(0.01)
print(planner()._process.pid, flush=True)
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)", "raise KeyboardInterrupt", "sys.exit(3)"])
def test_it_ends_with_the_program(end: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT + end], capture_output=True, text=True, timeout=120, cwd=os.path.dirname(__file__)
    )
    pid = int(ended.stdout)
    assert ended.returncode in (0, -9, -signal.SIGINT, 3)
    for _ in range(200):
        if not is_alive(pid):
            return
        time.sleep(0.05)
    pytest.fail("the process that makes plans outlives the program")


def test_the_benchmark_runs() -> None:
    found = planning.measure(2, (64,), 5)
    assert found.stats.steps >= 5
    assert 0 < found.waited_s < found.wall_s


def test_plans_that_are_kept_serve_the_next_run(tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_PLANS", str(tmp_path / "plans"))
    found = []
    for _ in range(2):
        _, step = MAKE()
        with torch_lms.session(limit=limit, min_size=MIN_SIZE):
            for _ in range(4):
                step()
            for _ in range(2):  # the first plan, which is not kept, and the better one
                plans().wait()
                for _ in range(3):
                    step()
            assert torch_lms.stats().planned_steps >= 4
            kept = sorted(path.read_text() for path in (tmp_path / "plans").iterdir())
            found.append(kept)
    assert found[0] == found[1]
    assert len(found[0]) >= 1
