"""Steps that follow a plan on a device with streams: pages come back without a detour through the dispatch mode."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import torch_lms
from torch_lms.capture.mode import LmsMode
from torch_lms.native.load import find

MIN_SIZE = 1024
STEPS = 4


@pytest.mark.skipif(find().native is None, reason="no native interposer here")
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
