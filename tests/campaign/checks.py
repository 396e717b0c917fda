"""Parts that pass or fail: is everything equal to the bit on this device?"""

import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch

import torch_lms
from tests import accelerator
from tests import workloads as trainings
from tests.accelerator import fuzz
from tests.accelerator import programs as written
from tests.bits import same_bits
from tests.campaign.commands import CommandFailed, run
from tests.campaign.found import Found, Where
from torch_lms.engine import engine
from torch_lms.planner import Speeds

_TINY_TESTS = ("tests/gpu/test_streams.py", "tests/gpu/test_bandwidth.py", "-k", "lending or brought or probe")
_TINY_WORKLOADS = ("cnn", "checkpoint", "adamw-fused")
_TINY_PROGRAMS, _TINY_SEEDS = ("second_owner", "slow_disk", "fetch_given_up"), 4
_ON_DISK = ("cnn", "unet", "encoder", "adamw-fused")
_RANDOM_S = 75.0
"""For random programs on a real device."""

_STEPS = 7
_MIN_SIZE = 1024


def tests(where: Where, found: Found) -> None:
    """``tests/gpu``."""
    report = where.folder / "tests.xml"
    asked = _TINY_TESTS if where.is_tiny else ("tests/gpu",)
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *asked, may_fail=True)
    counts = {"passed": 0, "skipped": 0, "failed": 0}
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[kind] += 1
        if kind == "failed":
            found.fail(f"{case.get('name')}")
    for kind, count in counts.items():
        found.row(kind, str(count))
    if not counts["passed"]:
        found.fail("no test has passed")
    found.figures = {"counts": counts}
    found.summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())


def workloads(where: Where, found: Found) -> None:
    """Every workload at a third of its demand, planned with recomputation, and at a half, reactive."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    trainings.STEPS = _STEPS
    device = where.torch_device
    counts = {"equal": 0, "different": 0, "not repeatable": 0}
    planned_steps = recomputes = 0
    slow_links = mock.patch.object(engine, "Speeds", return_value=Speeds(1e6, 1e6))  # so some pages are recomputed
    for name in _TINY_WORKLOADS if where.is_tiny else trainings.WORKLOADS:
        workload = trainings.WORKLOADS[name]
        expected = workload(device)
        if not same_bits(workload(device), expected):
            counts["not repeatable"] += 1
            found.row(name, "two runs without LMS differ")
            continue
        with torch_lms.session(limit="64GB", min_size=_MIN_SIZE, device=device) as lms:
            workload(device)
            demand = lms.stats().demand_bytes
        settings: dict[str, dict[str, Any]] = {
            "planned": {"limit": demand // 3},
            "reactive": {"limit": demand // 2, "policy": "reactive"},
        }
        if name in _ON_DISK:
            settings["disk"] = {"limit": demand // 2, "host_limit": 0}
        for kind, setting in settings.items():
            with slow_links, torch_lms.session(min_size=_MIN_SIZE, device=device, **setting) as lms:
                results = workload(device)
                lms.validate()
                stats = lms.stats()
            is_equal = same_bits(results, expected)
            counts["equal" if is_equal else "different"] += 1
            planned_steps, recomputes = planned_steps + stats.planned_steps, recomputes + stats.recomputes
            found.row(
                f"{name}, {kind}",
                f"{'equal' if is_equal else 'DIFFERENT'}, {stats.planned_steps} planned steps, "
                f"{stats.evictions} evictions, {stats.recomputes} recomputed",
            )
            if not is_equal:
                found.fail(f"{name}, {kind}: other bits")
    if not (counts["equal"] and planned_steps and recomputes):
        found.fail(f"{counts['equal']} trainings equal, {planned_steps} planned steps, {recomputes} pages recomputed")
    found.figures = {"counts": counts, "planned_steps": planned_steps, "recomputes": recomputes}
    found.summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())


def programs(where: Where, found: Found) -> None:
    """Programs written for one wait, and random ones; on a real device, streams at their own pace."""
    if where.device == accelerator.NAME:
        accelerator.install()
    device = where.torch_device
    torch.set_num_threads(1)
    names = _TINY_PROGRAMS if where.is_tiny else tuple(written.PROGRAMS)
    wrong = [name for name in names if _says(found, name, written.difference(written.PROGRAMS[name], device))]
    until_s, seed, evictions = time.monotonic() + _RANDOM_S, 0, 0
    while time.monotonic() < until_s and not (where.is_tiny and seed >= _TINY_SEEDS):
        verdict = fuzz.verdict(seed, device)
        evictions += verdict.evictions
        if verdict.difference:
            wrong.append(f"random program {seed}")
            found.fail(f"random program {seed}: {verdict.difference[:200]}")
        seed += 1
    found.row("random programs", f"{seed}, with {evictions} evictions")
    found.figures = {"written": len(names), "random": seed, "wrong": wrong}
    found.summary = f"{len(names)} written, {seed} random, {len(wrong)} go wrong"


def _says(found: Found, name: str, difference: str) -> bool:
    found.row(name, difference or "right")
    if difference:
        found.fail(f"{name}: {difference[:200]}")
    return bool(difference)


def collectives(where: Where, found: Found) -> None:
    """DDP and FSDP2 with what the device has for collectives: one rank, and two where there are two devices."""
    backend: tuple[str, ...] = ()
    asked = [("ddp", 1), ("fsdp2", 1)]
    if where.device == accelerator.NAME:
        # DDP's reducer wants works with results, which the fake group has not; gloo takes no tensors of the device
        backend, asked = ("--backend", "fake"), [("fsdp2", 1)]
    elif torch.accelerator.device_count() > 1:
        asked += [("ddp", 2), ("fsdp2", 2)]
    for script, ranks in asked:
        _try(found, script, ranks, partial(_torchrun, where, script, ranks, backend))
    found.summary = f"{len(asked) - len(found.failures)} of {len(asked)} equal to the bit"
    found.figures = {"asked": asked}


def _try(found: Found, script: str, ranks: int, command: Callable[[], str]) -> None:
    what = f"{script}, {ranks} {'rank' if ranks == 1 else 'ranks'}"
    try:
        said = [line for line in command().splitlines() if ", rank " in line]
    except CommandFailed as error:
        found.fail(f"{what}: {error}")
        return
    found.row(what, "; ".join(said))


def _torchrun(where: Where, script: str, ranks: int, backend: tuple[str, ...]) -> str:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return run(*launcher, "-m", f"tests.distributed.{script}", "--device", where.device, *backend)
