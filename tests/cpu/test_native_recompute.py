"""A plan's drops and recomputations that the native interposer decides on: the same bits, also where one fails."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

import torch_lms
from tests.injection import NthCall, calls_repeated, counted, in_place_of, moves_in_python
from tests.ways import IS_NATIVE
from torch_lms.engine import engine
from torch_lms.engine.planning import Speeds
from torch_lms.errors import StoreError
from torch_lms.pager.transfers import Transfers
from torch_lms.runtime.cpu import CpuExecutor
from torch_lms.runtime.native_interposer import NativeFastPath
from torch_lms.runtime.native_recompute import NativeRecomputer

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason="no native interposer here")


class Training:
    """Steps of a network whose activations a plan recomputes in chains, and some of which it moves."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.weights = [nn.Parameter(torch.randn(64, 64)) for _ in range(4)]
        self.optimizer = torch.optim.Adam(self.weights, foreach=False)

    def loss(self) -> torch.Tensor:
        x = torch.ones(64, 64)
        for weight in self.weights:
            x = x.mm(weight).tanh()
            x = x.sin().mul(2).cos().exp().sin()
        return x.square().mean()

    def steps(self, count: int) -> list[torch.Tensor]:
        """The loss of each."""
        losses = []
        for _ in range(count):
            loss = self.loss()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.detach())
        return losses


PAGE = 4 * 64 * 64


@pytest.fixture(autouse=True)
def slow_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans take it that moving a page lasts longer than recomputing it, and are there at the next step."""
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")
    monkeypatch.setattr(engine, "Speeds", lambda *_: Speeds(1e4, 1e4))


def test_what_a_session_had_dropped_when_it_ended_the_next_does_not_know() -> None:
    with torch_lms.session(limit=16 * PAGE, min_size=1024, device="cpu") as lms:
        training = Training()
        training.steps(5)
        loss = training.loss()
        assert lms.stats().recomputes > 0
    del training, loss
    expected = Training().steps(4)
    with torch_lms.session(limit=16 * PAGE + (4000 << 10), min_size=1024, device="cpu") as lms:
        kept = [torch.ones(256) for _ in range(4000)]  # pages by the numbers of those that the first session dropped
        found = Training().steps(4)
        lms.validate()
        stats = lms.stats()
    assert found == expected
    assert stats.planned_steps > 0
    assert len(kept) == 4000


@pytest.mark.parametrize("room", [16, 19, 22])
def test_pages_are_recomputed_without_the_pager(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that an operation needs which is Python's, since it is captured to be repeated."""
    in_python = [0]
    whole = Transfers.recompute

    def counted(self: Transfers, page: Any) -> Any:
        in_python[0] += 1
        return whole(self, page)

    monkeypatch.setattr(Transfers, "recompute", counted)
    expected = Training().steps(9)
    with torch_lms.session(limit=room * PAGE, min_size=1024, device="cpu") as lms:
        training = Training()
        found = training.steps(5)
        lms.reset_stats()
        in_python[0] = 0
        found += training.steps(4)
        lms.validate()
        stats = lms.stats()
    assert all(map(torch.equal, found, expected))
    assert stats.planned_steps >= 3
    assert stats.recomputes - in_python[0] > 0
    assert stats.peak_resident_bytes <= room * PAGE


@pytest.mark.parametrize("way", ["python", "native"])
def test_figures_are_those_of_either_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recomputed hangs on times, so only sums that do not are compared."""
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", way)
    with torch_lms.session(limit=19 * PAGE, min_size=1024, device="cpu") as lms:
        training = Training()
        training.steps(5)
        lms.reset_stats()
        training.steps(1)
        stats = lms.stats()
        recomputed = [span for span in lms.timeline().spans if span.name == "recompute"]
    assert stats.interposer == way
    assert len(recomputed) == stats.recomputes
    assert sum(span.nbytes for span in recomputed) == stats.recomputed_bytes == stats.recomputes * PAGE


def test_pages_that_a_longer_plan_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told of them when one cannot be recomputed: the plan that is followed has no such recomputations."""
    hand_over = NativeFastPath.hand_over
    calls = count(1)

    def of_another(self: NativeFastPath) -> None:
        for backend in self._table.backends:
            recipes = backend.engine.pager.recipes
            for page, recipe in recipes.items():
                recipes[page] = recipe._replace(number=1000 + recipe.number % 1000)
        hand_over(self)

    monkeypatch.setattr(NativeFastPath, "hand_over", of_another)
    expected = Training().steps(9)
    now_and_then = calls_repeated(lambda: next(calls) % 7 == 0)
    with now_and_then, torch_lms.session(limit=19 * PAGE, min_size=1024, device="cpu") as lms:
        found = Training().steps(9)
        lms.validate()
        assert lms.stats().planned_steps >= 3
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("way", [nullcontext, moves_in_python], ids=["C++", "Python"])
def in_python() -> tuple[int, int, int]:
    """Of four steps that follow a plan: recomputations; how many Python performed, and how many it prepared."""
    expected = Training().steps(10)
    with torch_lms.session(limit=19 * PAGE, min_size=1024, device="cpu") as lms:
        training = Training()
        found = training.steps(6)
        with (
            counted(NativeRecomputer, "bind") as bound,
            counted(NativeRecomputer, "recompute") as recomputed,
        ):
            lms.reset_stats()
            found += training.steps(4)
        recomputes = lms.stats().recomputes
    assert all(map(torch.equal, found, expected))
    assert recomputes > 0
    return recomputes, recomputed.calls, bound.calls


def test_all_go_natively() -> None:
    """None of a step's moves is Python's once it follows its plan from the beginning. Plans depend on times that were
    measured: by one of twenty, some have to wait for a copy, and the engine decides.
    """
    for _ in range(4):
        recomputes, recomputed, bound = in_python()
        if recomputed + bound < recomputes / 4:
            return
    pytest.fail(f"of {recomputes} recomputations Python performed {recomputed}, and prepared {bound}")


def test_all_go_by_python() -> None:
    with moves_in_python():
        recomputes, recomputed, bound = in_python()
    assert recomputed == recomputes
    assert bound >= recomputes


@pytest.mark.parametrize("fails_at", [1, 4])
@pytest.mark.parametrize("way", [nullcontext, moves_in_python], ids=["C++", "Python"])
def test_no_memory_to_repeat_a_call(way: Callable[[], AbstractContextManager[None]], fails_at: int) -> None:
    """Nothing is lost: the engine makes room, and has it repeated."""
    expected = Training().steps(10)
    with way(), torch_lms.session(limit=19 * PAGE, min_size=1024, device="cpu") as lms:
        training = Training()
        found = training.steps(6)
        refused_once = NthCall(lambda: False, fails_at, lambda *_: True)
        with calls_repeated(refused_once):
            found += training.steps(1)
        lms.validate()
        assert refused_once.calls > fails_at
        found += training.steps(3)
        lms.validate()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("fails_at", [1, 4])
def test_a_page_that_cannot_be_dropped(fails_at: int) -> None:
    """It is moved instead."""

    def refuse(*_: object) -> None:
        raise StoreError("not to be had again, for once")

    expected = Training().steps(10)
    with moves_in_python(), torch_lms.session(limit=19 * PAGE, min_size=1024, device="cpu") as lms:
        training = Training()
        found = training.steps(6)
        with in_place_of(NativeRecomputer, "bind", partial(NthCall, number=fails_at, instead=refuse)) as bound:
            found += training.steps(1)
        lms.validate()
        assert bound.calls > fails_at
        found += training.steps(3)
        lms.validate()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("fails_at", [1, 4])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [pytest.param(CpuExecutor, "drop", id="drop"), pytest.param(CpuExecutor, "recompute", id="recompute")],
)
def test_one_that_is_interrupted(
    owner: Any, name: str, is_done: bool, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is lost, as the user has it. The pages are not."""
    expected = Training()
    expected.steps(6)
    with moves_in_python(), torch_lms.session(limit=19 * PAGE, min_size=1024, device="cpu") as lms:
        training = Training()
        training.steps(6)

        def interrupt(whole: Callable[..., Any], *args: Any) -> None:
            if is_done:
                whole(*args)
            raise KeyboardInterrupt

        interrupted = in_place_of(owner, name, partial(NthCall, number=fails_at, instead=interrupt))
        with interrupted, pytest.raises(KeyboardInterrupt):
            training.steps(1)
        lms.validate()
        assert all(map(torch.equal, training.weights, expected.weights))
        training.optimizer.zero_grad()
        losses = training.steps(2)
        lms.validate()
    assert all(map(torch.equal, losses, expected.steps(2)))
