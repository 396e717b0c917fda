"""Parts that measure: the machine, what LMS adds to operations, and how good predictions are."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any
from unittest import mock

from rich.console import Console

from tests.campaign.commands import run
from tests.campaign.found import Found, Where
from torch_lms.cli import plan_validate
from torch_lms.cli.plan_cases import MEMORY, TIME, Case
from torch_lms.cli.plan_validate import Compared
from torch_lms.runtime import bandwidth
from torch_lms.runtime import calibrate as calibrating
from torch_lms.runtime.probe import probe
from torch_lms.targets import Setting
from torch_lms.units import format_bytes, format_seconds

_SECONDS = "30"
"""For each model of overhead.py."""

_TINY_CASE = Case("resnet50", Setting(size=64, batch=2, options={"model": "resnet18"}, optimizer="sgd", device="cpu"))


@contextmanager
def _patched(module: Any, **values: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def machine(where: Where, found: Found) -> None:
    """What there is, and how fast its links are."""
    with _patched(bandwidth, _DISK_BYTES=1 << 26) if where.is_tiny else _patched(bandwidth):
        there = probe()
    if not there.accelerators:
        found.fail("PyTorch finds no accelerator")
        return
    for device in there.accelerators:
        found.row(device.device, f"{device.model}, {format_bytes(device.total_bytes)}")
    for link in there.links:
        speed = "not measured: " + link.note if link.bytes_per_s is None else f"{format_bytes(link.bytes_per_s)}/s"
        found.row(link.name, speed)
    found.figures = json.loads(json.dumps(asdict(there), default=str))
    del found.figures["interposer"]["reason"]  # names a file of this machine
    found.summary = f"{len(there.accelerators)} x {there.accelerators[0].model}"


def overhead(where: Where, found: Found) -> None:
    """``benchmarks/overhead.py`` and ``benchmarks/short.py`` on the device: microseconds of the host."""
    target = where.folder / "overhead.json"
    size = ("--quick",) if where.is_tiny else ("--seconds", _SECONDS)
    run("benchmarks/overhead.py", "--device", where.device, *size, "--output", str(target))
    found.figures = json.loads(target.read_text())
    for op in found.figures["ops"]:
        kind = "pages" if op["paged"] else "below min_size"
        stock, added = op["us"]["stock"]["median"], op["added_us"]["native"]["median"]
        found.row(f"{op['name']}, {kind}", f"{stock:.1f} us, LMS adds {added:.1f}")
    ratios = []
    for step in found.figures["steps"]:
        ratios.append(step["over_stock"]["native"]["median"])
        found.row(step["name"], f"{step['stock_s']['median']:.3g} s, with LMS {ratios[-1]:.3f} times that")
    found.summary = f"steps take {min(ratios):.2f} to {max(ratios):.2f} times as long while everything fits"
    target = where.folder / "short.json"
    size = ("--rounds", "2") if where.is_tiny else ("--rounds", "5")
    run("benchmarks/short.py", "--device", where.device, *size, "--output", str(target))
    found.figures["short"] = json.loads(target.read_text())
    for way, took in found.figures["short"]["us"].items():
        for what, spread in took.items():
            found.row(f"an {what} while room is short, {way}", f"{spread['median']:.1f} us")


def calibration(where: Where, found: Found) -> None:
    """``torch-lms doctor --calibrate``."""
    tiny = {"_GPU_SIDE": 256, "_GPU_COPY": 1 << 22, "_GPU_SCALE": 1, "_ROUNDS": 1, "_PAGED_STEPS": 3}
    with (
        _patched(calibrating, **(tiny if where.is_tiny else {})),
        _patched(bandwidth, **({"_DISK_BYTES": 1 << 26} if where.is_tiny else {})),
    ):
        there, measured, _ = calibrating.calibrate()
    device = there.accelerator
    found.row("arithmetic, float32", f"{device.fp32_flop_per_s / 1e12:.3g} TFLOP/s")
    found.row("arithmetic, bfloat16", f"{(device.bf16_flop_per_s or 0) / 1e12:.3g} TFLOP/s")
    found.row("memory", f"{format_bytes(device.memory_bytes_per_s)}/s")
    found.row("an operation at least", format_seconds(device.launch_s))
    cost = measured.host_cost(measured.interposer())
    found.row("LMS adds to an operation while all fits", format_seconds(cost.op_s))
    found.row("LMS adds to an operation while room is short", format_seconds(cost.short_op_s))
    found.row("an action", format_seconds(cost.action_s))
    found.row("steps of four small networks: median error", f"{measured.error:.0%}")
    found.figures = {"machine": asdict(there), "calibration": asdict(measured)}
    found.summary = f"{format_seconds(cost.short_op_s)} an operation while room is short, {measured.interposer()}"


def validation(where: Where, found: Found) -> None:
    """``torch-lms plan --validate``: memory, and seconds of a step."""
    cases = {"MEMORY": MEMORY, "TIME": TIME}
    if where.is_tiny:
        cases = {"MEMORY": (_TINY_CASE,), "TIME_ON_ACCELERATOR": (_TINY_CASE,)}
    with _patched(plan_validate, **cases):
        compared = plan_validate.validate(Console(file=sys.stderr, width=150))
    for name, values in (
        ("bytes LMS knows of", compared.demand_bytes),
        ("bytes allocated", compared.allocated_bytes),
        ("seconds, stock", compared.stock_s),
        ("seconds, planned at demand/2", compared.planned_s),
    ):
        found.row(name, _errors(values))
        if not values:
            found.fail(f"{name}: nothing was compared")
    found.figures = compared.plain()
    found.summary = f"seconds of a step: {_errors(compared.stock_s)}"


def _errors(values: list[Compared]) -> str:
    errors = sorted(abs(one.error) for one in values)
    if not errors:
        return "not measured"
    return f"median error {errors[len(errors) // 2]:.1%}, worst {errors[-1]:.1%}, {len(errors)} cases"
