"""Steps that differ in places follow a plan in all others: layers are left out, batches change, something is logged."""

import random
from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch
from shares import run, trained
from torch import nn

import torch_lms

STEPS = 30

Results = list[torch.Tensor]


class Blocks(nn.Module):
    """Residual blocks, of which some are left out."""

    def __init__(self, blocks: int = 6, width: int = 48) -> None:
        super().__init__()
        inner = [
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(blocks)
        ]
        self.blocks = nn.ModuleList(inner)

    def forward(self, x: torch.Tensor, left_out: float, draw: random.Random) -> torch.Tensor:
        for block in self.blocks:
            if draw.random() >= left_out:
                x = x + block(x)
        return x


def training(step: Callable[[Blocks, random.Random, int], torch.Tensor]) -> Results:
    """The results of a training. ``step``: the loss of a model at the step of that number."""
    torch.manual_seed(0)
    draw, numbers = random.Random(1), count()
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    return trained(model, optimizer, lambda: step(model, draw, next(numbers)), STEPS)


def layers_left_out() -> Results:
    """Another part of the layers each time."""
    return training(lambda model, draw, _: model(torch.randn(32, 48), 0.15, draw).square().mean())


def augmented() -> Results:
    """Each batch may be flipped, and scaled, and moved."""

    def step(model: Blocks, draw: random.Random, _: int) -> torch.Tensor:
        x = torch.randn(32, 48)
        for change in (lambda x: x.flip(0), lambda x: x * 1.5, lambda x: x + 0.1, lambda x: x.roll(1, 0)):
            if draw.random() < 0.5:
                x = change(x)
        return model(x, 0.0, draw).square().mean()

    return training(step)


def logged() -> Results:
    """Of some steps norms are taken, of weights and of results, and a part of the model runs beside."""
    kept: list[torch.Tensor] = []

    def step(model: Blocks, draw: random.Random, number: int) -> torch.Tensor:
        result = model(torch.randn(32, 48), 0.0, draw)
        if number % 3 == 0:
            kept.append(result.detach().norm())
        if number % 4 == 0:
            kept.extend(weight.detach().norm() for weight in draw.sample(list(model.parameters()), 3))
        if number % 5 == 0:
            with torch.no_grad():
                kept.append(model(torch.ones(8, 48), 0.5, draw).sum())
        return result.square().mean()

    return [*training(step), *kept]


def batches_that_live_on() -> Results:
    """Each step takes another of some batches that were made beforehand."""
    torch.manual_seed(1)
    batches = [torch.randn(32, 48) for _ in range(7)]
    return training(lambda model, draw, number: model(batches[number % 7], 0.0, draw).square().mean())


def interrupted() -> Results:
    """Some steps fail in their midst, and the program goes on."""

    def step(model: Blocks, draw: random.Random, number: int) -> torch.Tensor:
        x = torch.randn(32, 48)
        if number % 6 == 5:
            with pytest.raises(RuntimeError):
                model(x, 0.0, draw) @ torch.ones(3)
        return model(x, 0.0, draw).square().mean()

    return training(step)


PROGRAMS: dict[str, tuple[Callable[[], Results], float]] = {
    "layers left out": (layers_left_out, 0.8),
    "augmented": (augmented, 0.85),
    "logged": (logged, 0.8),
    "batches that live on": (batches_that_live_on, 0.9),
    "interrupted": (interrupted, 0.8),
}


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The share of each step's operations that were a plan's."""
    shares: list[float] = []
    end_step = torch_lms.engine.PlanCache.end_step

    def noted(self: torch_lms.engine.PlanCache, step: torch_lms.engine.EndedStep) -> None:
        shares.append(step.followed_ops / step.record.op_count)
        end_step(self, step)

    monkeypatch.setattr(torch_lms.engine.PlanCache, "end_step", noted)
    return shares


@pytest.mark.usefixtures("_each_interposer")
@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize("name", PROGRAMS)
def test_most_operations_follow_a_plan(name: str, share: float, followed: list[float]) -> None:
    program, least = PROGRAMS[name]
    stats = run(program, share)
    assert stats.evicted_bytes + stats.recomputed_bytes > 0
    late = followed[-STEPS // 2 :]
    assert sum(late) >= least * len(late)
    assert 0 < stats.planned_steps + stats.rejoined_steps <= stats.steps
