"""A plan's drops and recomputations that the native interposer decides on: the same bits, also where one fails."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_lms
from tests.ways import IS_NATIVE
from torch_lms.engine import engine
from torch_lms.engine.planning import Speeds
from torch_lms.errors import StoreError
from torch_lms.pager.transfers import Transfers
from torch_lms.runtime.cpu import CpuExecutor
from torch_lms.runtime.native_interposer import NativeFastPath
from torch_lms.runtime.recompute import Recomputer

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason="no native interposer here")


class Training:
    """Steps of a network whose activations a plan recomputes in chains, and some of which it moves."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.weights = [nn.Parameter(torch.randn(64, 64)) for _ in range(4)]
        self.optimizer = torch.optim.Adam(self.weights, foreach=False)

    def steps(self, count: int) -> list[torch.Tensor]:
        """The loss of each."""
        losses = []
        for _ in range(count):
            x = torch.ones(64, 64)
            for weight in self.weights:
                x = x.mm(weight).tanh()
                x = x.sin().mul(2).cos().exp().sin()
            loss = x.square().mean()
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
    hand_over, recompute = NativeFastPath.hand_over, Recomputer.recompute
    calls = [0]

    def of_another(self: NativeFastPath) -> None:
        for backend in self._table.backends:
            recipes = backend.engine.pager.recipes
            for page, recipe in recipes.items():
                recipes[page] = recipe._replace(number=1000 + recipe.number % 1000)
        hand_over(self)

    def now_and_then(self: Recomputer, page: Any) -> None:
        calls[0] += 1
        if calls[0] % 3 == 0:
            _run_out()
        recompute(self, page)

    monkeypatch.setattr(NativeFastPath, "hand_over", of_another)
    monkeypatch.setattr(Recomputer, "recompute", now_and_then)
    expected = Training().steps(9)
    with torch_lms.session(limit=19 * PAGE, min_size=1024, device="cpu") as lms:
        found = Training().steps(9)
        lms.validate()
        assert lms.stats().planned_steps >= 3
    assert all(map(torch.equal, found, expected))


def _refuse(*_: object) -> None:
    raise StoreError("not to be had again, for once")


def _run_out(*_: object) -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("fails_at", [1, 4])
@pytest.mark.parametrize(
    ("owner", "name", "fail"),
    [
        pytest.param(Recomputer, "bind", _refuse, id="a page that cannot be dropped"),
        pytest.param(Recomputer, "recompute", _run_out, id="no memory to recompute"),
    ],
)
def test_one_that_fails(
    owner: Any, name: str, fail: Callable[..., None], fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost: what failed once is tried again by the engine."""
    expected = Training().steps(10)
    with torch_lms.session(limit=19 * PAGE, min_size=1024, device="cpu") as lms:
        training = Training()
        found = training.steps(6)
        calls = _fails_once(owner, name, fail, fails_at, monkeypatch)
        found += training.steps(1)
        lms.validate()
        assert calls[0] > fails_at
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
    with torch_lms.session(limit=19 * PAGE, min_size=1024, device="cpu") as lms:
        training = Training()
        training.steps(6)
        whole = getattr(owner, name)

        def interrupt(*args: Any) -> None:
            if is_done:
                whole(*args)
            raise KeyboardInterrupt

        _fails_once(owner, name, interrupt, fails_at, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            training.steps(1)
        lms.validate()
        assert all(map(torch.equal, training.weights, expected.weights))
        training.optimizer.zero_grad()
        losses = training.steps(2)
        lms.validate()
    assert all(map(torch.equal, losses, expected.steps(2)))


def _fails_once(
    owner: Any, name: str, fail: Callable[..., None], fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """From now on the call of that number fails. How many there were."""
    whole = getattr(owner, name)
    calls = [0]

    def once(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == fails_at:
            fail(*args)
        return whole(*args)

    monkeypatch.setattr(owner, name, once)
    return calls
