"""Every optimizer of PyTorch, in each of its ways, on the device: equal to the bit with and without LMS."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from bits import same_bits
from torch import nn

import torch_lms

MIN_SIZE = 1024
STEPS = 4
WAYS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
    "plain": {},
}

Optimizer = Callable[..., torch.optim.Optimizer]


def cases() -> list[Any]:
    """Optimizers by name, each with the ways that its signature has. The device knows no sparse tensors."""
    found = []
    for name, kind in vars(torch.optim).items():
        if not isinstance(kind, type) or kind in (torch.optim.Optimizer, torch.optim.SparseAdam):
            continue
        if not issubclass(kind, torch.optim.Optimizer):
            continue
        known = kind.__init__.__code__.co_varnames
        ways = [way for way, options in WAYS.items() if options and set(options) <= set(known)] or ["plain"]
        found += [pytest.param(kind, way, id=f"{name.lower()}-{way}") for way in ways]
    return found


def train(kind: Optimizer, way: str, device: torch.device) -> list[torch.Tensor]:
    """Losses, weights and the optimizer's state."""
    torch.manual_seed(0)
    layers = [nn.Linear(48, 64, bias=False), nn.Tanh(), nn.Linear(64, 32, bias=False)]  # Muon takes matrices alone
    model = nn.Sequential(*layers).to(device)
    options: dict[str, Any] = {"max_iter": 3} if kind is torch.optim.LBFGS else {}
    optimizer = kind(model.parameters(), lr=0.01, **WAYS[way], **options)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(16, 48, device=device)

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure))
    held = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.detach() for tensor in (*losses, *model.parameters(), *held) if isinstance(tensor, torch.Tensor)]


@pytest.mark.parametrize(("kind", "way"), cases())
def test_equal_to_the_bit(kind: Optimizer, way: str, device: torch.device, module: ModuleType) -> None:
    try:
        expected = train(kind, way, device)
    except RuntimeError as error:
        pytest.skip(f"not without LMS either: {str(error).splitlines()[0]}")
    module.schedule("mixed", seed=len(way))
    with torch_lms.session(limit="20KiB", min_size=MIN_SIZE) as lms:
        results = train(kind, way, device)
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.evictions > 0
