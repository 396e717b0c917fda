"""The workloads of `test_equality.py`, for as long as it takes to follow plans (N14) that recompute pages (N16)."""

import pytest
import torch
import workloads
from bits import same_bits

import torch_lms
from torch_lms.engine import engine
from torch_lms.planner import Speeds

CPU = torch.device("cpu")
MIN_SIZE = 1024
STEPS = 8

NOTHING_TO_RECOMPUTE = {"double-backward", "inference-no-grad", "inference-mode"}
"""Without a backward, what an activation was made from is dead soon after."""


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_equal_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "STEPS", STEPS)
    monkeypatch.setattr(engine, "Speeds", lambda *_: Speeds(1e5, 1e5))
    workload = workloads.WORKLOADS[name]
    expected = workload(CPU)
    with torch_lms.session(limit="64GB", min_size=MIN_SIZE) as lms:
        workload(CPU)
        lms.step()
        demand = lms.stats().peak_resident_bytes
    planned = recomputes = 0
    for share in (2, 4, 8):
        with torch_lms.session(limit=demand // share, min_size=MIN_SIZE) as lms:
            results = workload(CPU)
            lms.validate()
            stats = lms.stats()
        assert same_bits(results, expected)
        planned, recomputes = planned + stats.planned_steps, recomputes + stats.recomputes
    assert planned >= STEPS
    assert recomputes or name in NOTHING_TO_RECOMPUTE
