"""Steps without a plan by the native interposer: operations pass by an outlook, and Python looks now and then."""

import errno
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import nn

import torch_lms
from tests.cpu.test_native import random_program
from tests.fault_rig import check_books
from tests.injection import NthCall, counted, disk_calls, failing
from tests.ways import IS_NATIVE
from torch_lms.capture.mode import LmsMode
from torch_lms.engine import Engine, PlanCache, StepRecord
from torch_lms.native import load
from torch_lms.policy import Reactive
from torch_lms.runtime import api
from torch_lms.runtime.native_interposer import _Pauses
from torch_lms.timeline import Lane

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason=f"no native interposer here: {load.find().reason}")

PAGE = 16 * 1024
LAYERS = 24


class Training:
    """Layers whose weights and activations are pages of one size, and a batch that may differ from step to step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(LAYERS))
        self.update = torch.optim.SGD(self.layers.parameters(), lr=0.1)

    def step(self, batch: int = 64) -> torch.Tensor:
        """One of them; its loss."""
        x = torch.ones(batch, 64)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        loss = x.square().mean()
        loss.backward()
        self.update.step()
        self.update.zero_grad()
        return loss.detach()

    def run(self, batches: list[int]) -> list[torch.Tensor]:
        return [self.step(batch) for batch in batches]


@contextmanager
def session(pages: int = LAYERS * 2, policy: str = "reactive", **options: object) -> Iterator[api.Lms]:
    """One under which half of a step's pages fit. Whatever happens, nothing exceeds its limit."""
    with torch_lms.session(limit=pages * PAGE, min_size=1024, policy=policy, device="cpu", **options) as lms:
        yield lms
        lms.validate()
        assert lms.stats().peak_resident_bytes <= pages * PAGE


@pytest.fixture
def no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are recorded for plans that nobody gets."""
    monkeypatch.setattr(PlanCache, "begin_step", lambda *_: [])


def told_to_python() -> AbstractContextManager[Any]:
    """Counts the operations that the engine has to decide on."""
    return counted(Engine, "op_begins")


@pytest.mark.usefixtures("no_plans")
def test_few_operations_are_told_to_python() -> None:
    expected = Training().run([64] * 6)
    training = Training()
    with session(policy="planned") as lms:
        found = training.run([64] * 4)
        lms.reset_stats()
        with told_to_python() as told:
            found += training.run([64] * 2)
        stats, ops = lms.stats(), len(lms.trace().ops)
    assert all(map(torch.equal, found, expected))
    assert stats.planned_steps == 0
    assert stats.evictions > LAYERS
    assert told.calls < 0.35 * 2 * ops  # at each 9th, where copies are slow


@pytest.mark.parametrize("pages", [30, 42, 54])
@pytest.mark.parametrize("seed", range(4))
def test_batches_of_other_sizes(seed: int, pages: int) -> None:
    """No plan fits, and sizes are met for the first time all along."""
    choose = random.Random(seed)
    batches = [choose.randrange(8, 96) for _ in range(8)]
    expected = Training().run(batches)
    training = Training()
    with session(pages, choose.choice(["reactive", "planned"])) as lms:
        found = training.run(batches)
        stats = lms.stats()
    assert all(map(torch.equal, found, expected))
    assert stats.evictions > 0


@pytest.mark.usefixtures("no_plans")
@pytest.mark.parametrize(("limit", "recompute"), [(16_000, True), (24_000, False)])  # nothing is cut in pieces
@pytest.mark.parametrize("seed", range(8))
def test_what_is_recorded_is_what_python_records(
    seed: int, limit: int, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = random_program(seed)
    expected = program()
    traces = []
    for way in ("python", "native"):
        monkeypatch.setenv("TORCH_LMS_INTERPOSER", way)
        with torch_lms.session(limit=limit, min_size=512, device="cpu", recompute=recompute) as lms:
            found = program()
            lms.validate()
            traces.append(api.last_step().trace)
        assert all(map(torch.equal, found, expected))
    ours, theirs = traces
    assert ours is not None
    assert theirs is not None
    assert [page.nbytes for page in ours.pages] == [page.nbytes for page in theirs.pages]
    later = [one != other for one, other in zip(ours.pages, theirs.pages, strict=True)]
    assert sum(later) <= 2  # a page lives as long as a copy of it is under way
    assert [op[:5] for op in ours.ops] == [op[:5] for op in theirs.ops]
    assert [op.is_repeatable for op in ours.ops] == [op.is_repeatable for op in theirs.ops]


@pytest.mark.usefixtures("no_plans")
def test_the_timeline_has_every_operation() -> None:
    training = Training()
    with session(policy="planned") as lms:
        training.run([64] * 3)
        before = lms.stats()
        training.step()
        trace, timeline, after = lms.trace(), lms.timeline(), lms.stats()
    assert len(timeline.levels) == len(trace.ops)
    assert max(level.disk for level in timeline.levels) > 0
    computed = sorted((span for span in timeline.spans if span.lane is Lane.COMPUTE), key=lambda span: span.start_s)
    assert {op.name for op in trace.ops} <= {span.name for span in computed}
    assert all(op.seconds >= 0 for op in trace.ops)
    assert sum(op.seconds for op in trace.ops) <= computed[-1].end_s - computed[0].start_s
    copied = [span for span in timeline.spans if span.lane in (Lane.D2H, Lane.H2D)]
    moved = after.evictions + after.fetches - before.evictions - before.fetches
    assert abs(len(copied) - moved) <= 4  # some may end in the step that follows


@pytest.mark.parametrize("number", [1, 9, 40])
@pytest.mark.parametrize("name", ["pwrite", "preadv"])
def test_a_copy_that_fails_once_is_tried_again_or_told(name: str, number: int) -> None:
    """A page that Python waits for is lost, it says, and there for whoever asks once more."""
    expected = Training().run([64] * 24)
    training = Training()
    found: list[torch.Tensor] = []
    with session():
        with disk_calls(name, NthCall(getattr(os, name), number, failing(errno.EIO))) as calls:
            while calls.calls <= number and len(found) < 20:  # how many pages are written at once depends on time
                with suppress(torch_lms.PageLostError):
                    found.append(training.step())
                training.update.zero_grad()
        assert calls.calls > number
        check_books()
        found += training.run([64] * 2)
    assert all(map(torch.equal, found, expected[: len(found)]))


def test_a_full_disk_is_told_and_nothing_is_lost() -> None:
    expected = Training().run([64] * 6)
    training = Training()
    with session() as lms:
        found = training.run([64] * 3)
        state = [parameter.detach().clone() for parameter in training.layers.parameters()]
        with disk_calls("pwrite", failing(errno.ENOSPC)), pytest.raises(torch_lms.StoreFullError):
            training.step()
        check_books()
        training.update.zero_grad()
        assert all(map(torch.equal, state, training.layers.parameters()))
        torch_lms.step()
        found += training.run([64] * 3)
        lms.validate()
    assert all(map(torch.equal, found, expected))


@pytest.mark.usefixtures("no_plans")
def test_a_policy_that_has_to_be_asked_is_asked_at_each_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reactive, "outlook", lambda *_: None)
    training = Training()
    with session(policy="planned") as lms:
        training.run([64] * 3)
        with told_to_python() as told:
            training.step()
        assert told.calls == len(lms.trace().ops)


def test_nothing_is_handed_over_for_a_while_where_each_operation_needs_python() -> None:
    pauses = _Pauses()
    handed_over = []
    for number in range(200):
        if not pauses.is_one_now():
            handed_over.append(number)
            pauses.passed(0)
    assert handed_over == [0, 1, 4, 11, 26, 57, 120, 184]
    pauses.passed(100)
    assert not pauses.is_one_now()


def test_a_step_comes_back_to_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """It did something else for a while, natively."""
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")

    def run() -> list[torch.Tensor]:
        training = Training()
        losses = []
        for number in range(10):
            if number % 3 == 2:
                x = torch.ones(64, 64)
                for _ in range(30):
                    x = torch.sin(x)
                losses.append(x.sum())
            losses.append(training.step())
        return losses

    expected = run()
    with session(policy="planned") as lms, counted(StepRecord, "tell_of_stretch") as told:
        found = run()
        stats = lms.stats()
    assert all(map(torch.equal, found, expected))
    assert stats.planned_steps > 2
    assert told.calls > 0
    assert stats.rejoined_steps > 0


def test_views_of_pages_that_are_away_pass_natively() -> None:
    """PyTorch checks some against the size of the storage, which is 0."""
    expected = Training().run([64] * 5)
    training = Training()
    with session():
        found = training.run([64] * 3)
        with counted(LmsMode, "_view") as told:
            found += training.run([64] * 2)
        assert told.calls < 0.2 * 2 * 2 * LAYERS  # between two outlooks Python has some
        for weight in training.layers.parameters():
            with pytest.raises(RuntimeError, match="out of bounds"):
                weight.detach().as_strided((64, 64), (64, 2))
    assert all(map(torch.equal, found, expected))
