"""Optimizers that evaluate a closure again and again: each evaluation is a step of its own (N14)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import torch_lms

PAGE = 16 * 1024
LAYERS = 12
LIMIT = 3 * LAYERS * PAGE
EVALUATIONS = 6


class Twice(optim.Optimizer):
    """Goes by the gradient of where that leads, as sharpness-aware minimization: evaluated here, and there."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is not None
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        with torch.enable_grad():
            closure()
        moves = [parameter.grad * 0.05 for parameter in parameters]
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.add_(move)
        with torch.enable_grad():
            loss = closure()
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.sub_(move).sub_(parameter.grad, alpha=0.1)
        return loss


def again_and_again(parameters: Any) -> optim.Optimizer:
    return optim.LBFGS(parameters, lr=0.1, max_iter=EVALUATIONS, history_size=1, tolerance_grad=0, tolerance_change=-1)


def twice(parameters: Any) -> optim.Optimizer:
    return Twice(parameters, {})


def once(parameters: Any) -> optim.Optimizer:
    return optim.Adam(parameters, lr=0.01)


def train(kind: Callable[[Any], optim.Optimizer], updates: int, *, by_name: bool) -> tuple[list[torch.Tensor], int]:
    """Losses and weights, and how often the closure was evaluated."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh()) for _ in range(LAYERS)))
    optimizer = kind(model.parameters())
    evaluations = 0

    def closure() -> torch.Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = model(torch.ones(64, 64)).square().mean()
        loss.backward()
        return loss

    losses = [optimizer.step(closure=closure) if by_name else optimizer.step(closure) for _ in range(updates)]
    return [*(loss.detach().clone() for loss in losses), *model.parameters()], evaluations


@pytest.mark.parametrize(
    ("kind", "evaluations", "by_name"),
    [
        pytest.param(again_and_again, EVALUATIONS, False, id="L-BFGS"),
        pytest.param(again_and_again, EVALUATIONS, True, id="L-BFGS, by name"),
        pytest.param(twice, 2, False, id="twice"),
        pytest.param(once, 1, False, id="once"),
    ],
)
def test_each_evaluation_is_a_step_that_may_follow_a_plan(
    kind: Callable[[Any], optim.Optimizer], evaluations: int, by_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")
    updates = 24 // evaluations
    expected, times = train(kind, updates, by_name=by_name)
    assert times == 24

    with torch_lms.session(limit=LIMIT, min_size=PAGE, device="cpu") as lms:
        seen, times = train(kind, updates, by_name=by_name)
        stats = lms.stats()

    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert times == stats.steps == 24
    assert stats.planned_steps >= 12
    assert stats.peak_resident_bytes <= LIMIT
