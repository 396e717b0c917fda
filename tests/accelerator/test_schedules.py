"""Trainings under LMS, on streams that do what they are asked as late as they like: equal to the bit."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import workloads
from bits import same_bits

import torch_lms
from torch_lms.engine import engine
from torch_lms.planner import Speeds
from torch_lms.residency import Tier

MIN_SIZE = 1024
STEPS = 7

Reference = tuple[list[torch.Tensor], int]


@pytest.fixture(autouse=True)
def _steps_enough_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "STEPS", STEPS)


@pytest.fixture(scope="module")
def reference_of(device: torch.device, module: ModuleType) -> Callable[[str], Reference]:
    """What a workload gives without LMS, and its demand."""
    known: dict[str, Reference] = {}

    def reference_of(name: str) -> Reference:
        if name not in known:
            module.schedule("eager")
            workload = workloads.WORKLOADS[name]
            expected = workload(device)
            with torch_lms.session(limit="64GB", min_size=MIN_SIZE) as lms:
                workload(device)
                lms.step()
                known[name] = expected, lms.stats().peak_resident_bytes
        return known[name]

    return reference_of


@pytest.mark.parametrize("pace", ["delayed", "lazy", "mixed"])
@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_planned_steps_that_recompute(
    name: str,
    pace: str,
    module: ModuleType,
    device: torch.device,
    reference_of: Callable[[str], Reference],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "Speeds", lambda *_: Speeds(1e6, 1e6))  # some pages are recomputed, others moved
    expected, demand = reference_of(name)
    module.schedule(pace, seed=len(name))
    with torch_lms.session(limit=demand // 3, min_size=MIN_SIZE) as lms:
        results = workloads.WORKLOADS[name](device)
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.planned_steps > 0


@pytest.mark.parametrize("host_limit", ["auto", 0], ids=["host", "disk"])
@pytest.mark.parametrize("name", ["unet", "lstm", "encoder", "adam-foreach", "checkpoint", "autocast-fp16"])
def test_reactive_steps(
    name: str,
    host_limit: str | int,
    module: ModuleType,
    device: torch.device,
    reference_of: Callable[[str], Reference],
) -> None:
    expected, demand = reference_of(name)
    module.schedule("mixed", seed=len(name))
    with torch_lms.session(demand // 2, MIN_SIZE, policy="reactive", host_limit=host_limit) as lms:
        results = workloads.WORKLOADS[name](device)
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.evictions > 0
    assert stats.fetches > 0


def test_plans_know_what_the_host_holds_and_what_the_disk_reaches(
    module: ModuleType, device: torch.device, reference_of: Callable[[str], Reference]
) -> None:
    expected, demand = reference_of("unet")
    module.schedule("mixed", seed=4)
    with torch_lms.session(limit=demand // 3, min_size=MIN_SIZE, host_limit=demand // 10) as lms:
        results = workloads.WORKLOADS["unet"](device)
        (paged,) = [backend for backend in lms._session._table.backends if backend.device == device]
        speeds = paged.engine._link_speeds()
    assert same_bits(results, expected)
    assert speeds.host_bytes == paged.tiers[Tier.HOST] <= demand // 10
    assert all(0 < speed < float("inf") for speed in (speeds.disk_write, speeds.disk_read))


def test_memory_that_runs_out_within_the_limit(
    module: ModuleType, device: torch.device, reference_of: Callable[[str], Reference]
) -> None:
    """The books say that it fits, and the device has less: operations run again with everything else gone."""
    expected, demand = reference_of("unet")
    module.empty_cache()
    module.set_capacity(module.memory_allocated() + int(0.7 * demand))
    module.schedule("mixed", seed=1)
    with torch_lms.session(limit=demand, min_size=MIN_SIZE, policy="reactive") as lms:
        results = workloads.WORKLOADS["unet"](device)
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.recoveries > 0


@pytest.mark.parametrize("sync_mode", range(4))
def test_plans_by_the_rules_of_tflms(
    sync_mode: int, module: ModuleType, device: torch.device, reference_of: Callable[[str], Reference]
) -> None:
    expected, demand = reference_of("unet")
    module.schedule("mixed", seed=sync_mode)
    tune = {"swapout_threshold": 1, "swapin_ahead": 1, "sync_mode": sync_mode}
    with torch_lms.session(demand // 2, MIN_SIZE, policy="tflms2", tune=tune) as lms:
        results = workloads.WORKLOADS["unet"](device)
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.planned_steps > 0
    assert stats.recomputes == 0
