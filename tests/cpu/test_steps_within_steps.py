"""Optimizers whose step has another's in it: that of their superclass, or of an optimizer that they have (N14)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import torch_lms
from torch_lms.runtime import api

LAYERS = 6
PAGE = 16 * 1024
STEPS = 12
LIMIT = 3 * LAYERS * PAGE


class Clipped(optim.AdamW):
    """Clips, and has its superclass do the rest."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            nn.utils.clip_grad_value_(group["params"], 0.01)
        return super().step(closure)


class Noted(optim.LBFGS):
    """Hands its closure on."""

    def step(self, closure: Any) -> Any:
        return super().step(closure)


class LookingAhead(optim.Optimizer):
    """Has weights that follow slowly those of another optimizer."""

    def __init__(self, inner: optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        self.inner.step()
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", torch.zeros_like(parameter))
                parameter.copy_(slow.lerp_(parameter, 0.5))


def clipped(parameters: Any) -> optim.Optimizer:
    optim.AdamW([nn.Parameter(torch.zeros(1))])  # PyTorch calls hooks for classes of which there was one
    return Clipped(parameters)


def noted(parameters: Any) -> optim.Optimizer:
    optim.LBFGS([nn.Parameter(torch.zeros(1))])
    return Noted(parameters, max_iter=1, history_size=1, tolerance_grad=0, tolerance_change=-1)


def looking_ahead(parameters: Any) -> optim.Optimizer:
    return LookingAhead(optim.AdamW(parameters))


def train(kind: Callable[[Any], optim.Optimizer]) -> tuple[list[torch.Tensor], optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh()) for _ in range(LAYERS)))
    optimizer = kind(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(64, 64)).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        if kind is noted:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()], optimizer


@pytest.mark.parametrize("kind", [clipped, noted, looking_ahead])
def test_they_make_one_step(kind: Callable[[Any], optim.Optimizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")
    expected, _ = train(kind)

    with torch_lms.session(limit=LIMIT, min_size=PAGE, device="cpu") as lms:
        seen, optimizer = train(kind)
        stats = lms.stats()
        watched = api._running._steps._foreign  # type: ignore[union-attr]
        assert optimizer in watched._harmless  # PyTorch's step in it was seen to write all

    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert stats.steps == STEPS
    assert stats.planned_steps >= STEPS // 2
    assert stats.peak_resident_bytes <= LIMIT


def test_a_step_that_fails_is_part_of_no_other() -> None:
    class Failing(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step()
            raise ValueError("no")

    model = nn.Linear(64, 64)
    failing, good = Failing(model.parameters()), optim.SGD(model.parameters())
    with torch_lms.session(limit=LIMIT, min_size=256, device="cpu") as lms:
        for optimizer in (failing, good, good):
            model(torch.ones(2, 64)).sum().backward()
            if optimizer is failing:
                with pytest.raises(ValueError, match="no"):
                    optimizer.step()
            else:
                optimizer.step()
        assert lms.stats().steps == 2
