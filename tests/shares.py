"""Programs under a share of their demand."""

from collections.abc import Callable

import torch
from torch import nn

import torch_lms
from tests.bits import same_bits
from torch_lms.runtime.stats import Stats

MIN_SIZE = 1024

Program = Callable[[], list[torch.Tensor]]


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor], steps: int
) -> list[torch.Tensor]:
    """The losses of so many steps, then the weights. ``loss``: that of ``model``, on a new batch each time."""
    losses = []
    for _ in range(steps):
        found = loss()
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found.detach())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def run(program: Program, share: float) -> Stats:
    """Runs ``program`` on the CPU under ``share`` of its demand: with the bits that it has without."""
    with torch_lms.session(limit="1GB", min_size=MIN_SIZE, device="cpu") as lms:  # an empty mode changes some bits
        expected = program()
        limit = int(share * lms.stats().demand_bytes)
    with torch_lms.session(limit=limit, min_size=MIN_SIZE, device="cpu") as lms:
        results = program()
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.peak_resident_bytes <= limit
    return stats
