"""``torch-lms doctor``: what this machine has, and what to know about it."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torch_lms.errors import UsageError
from torch_lms.output import JsonTarget, json_option, people_console, write_json
from torch_lms.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from torch_lms.machine import Calibration
    from torch_lms.runtime.probe import Machine

Rows = list[tuple[str, str]]

_INTERPOSERS = {"native": "the native interposer", "python": "a dispatch mode in Python"}


@click.command()
@click.option(
    "--spill-dir",
    type=click.Path(path_type=Path),
    help="Directory to look at and measure (default: where a session would spill).",
)
@click.option("--quick", is_flag=True, help="Measure nothing.")
@click.option("--build", is_flag=True, help="Build the native interposer, if there is none yet for this PyTorch.")
@click.option("--calibrate", is_flag=True, help="Measure operations too, for `torch-lms plan --machine this`.")
@json_option
def command(spill_dir: Path | None, quick: bool, build: bool, calibrate: bool, json_to: JsonTarget | None) -> None:
    """Show what this machine has: devices, memory and the limits that bind, versions, the measured speed of every link.

    Measuring takes some seconds and writes up to 1 GiB to the spill directory.
    """
    from torch_lms.runtime.advice import warnings_about
    from torch_lms.runtime.probe import probe

    console = people_console(json_to)
    if build:
        _build(console)
    if calibrate:
        _calibrate(console, spill_dir, json_to)
        return
    with console.status("looking" if quick else "measuring"):
        machine = probe(spill_dir, measure=not quick)
    warnings = warnings_about(machine)
    show = _show_tables if console.is_terminal else _show_text
    show(console, dict(_sections(machine)), warnings)
    if json_to is not None:
        binding, free_bytes = machine.memory.binding()
        result = {**asdict(machine), "binding": {"name": binding, "free_bytes": free_bytes}, "warnings": warnings}
        write_json(result, json_to)


def _build(console: "Console") -> None:
    from torch_lms.native import load

    with console.status("building the native interposer"):
        found = load.find()
    if found.native is None:
        raise UsageError(f"the native interposer cannot be had: {found.reason}")


def _calibrate(console: "Console", spill_dir: Path | None, json_to: JsonTarget | None) -> None:
    from torch_lms.runtime.calibrate import calibrate

    with console.status("measuring operations"):
        machine, calibration, path = calibrate(spill_dir)
    device = machine.accelerator
    lines = [
        device.name,
        f"  arithmetic   {device.fp32_flop_per_s / 1e9:.4g} GFLOP/s in float32",
        f"  memory       {format_bytes(device.memory_bytes_per_s)}/s",
        f"  an operation at least {format_seconds(device.launch_s)}",
        *(
            f"  {kind:<13} reaches {100 * flops:.2g}% of the arithmetic, or {100 * memory:.2g}% of the memory's speed"
            for kind, (flops, memory) in calibration.efficiencies.items()
        ),
        *_host_costs(calibration),
        f"  steps of four small networks are predicted with a median error of {calibration.error:.0%}",
        f"kept in {path}",
    ]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    if json_to is not None:
        write_json({"machine": machine, "calibration": calibration, "path": path}, json_to)


def _host_costs(calibration: "Calibration") -> Iterator[str]:
    """What LMS costs the host, a line for each interposer."""
    for name, cost in calibration.host_costs.items():
        if not cost.is_available:
            yield f"  LMS, {name}: not here"
            continue
        yield (
            f"  LMS, {name}: adds {format_seconds(cost.op_s)} to an operation while all fits; while room is short "
            f"{format_seconds(cost.short_op_s)}, and {format_seconds(cost.action_s)} for each action"
        )


def _sections(machine: "Machine") -> Iterator[tuple[str, Rows]]:
    yield "Versions", _versions(machine)
    yield "Devices", list(_devices(machine))
    yield "Memory", list(_memory(machine))
    yield "Spill directory", _spill(machine)
    if machine.links:
        yield "Links", [(link.name, _speed(link.bytes_per_s, link.note)) for link in machine.links]
    limit = machine.auto_limit
    yield "Operations", [("seen by", f"{_INTERPOSERS[machine.interposer.name]}: {machine.interposer.reason}")]
    yield 'limit="auto"', [(limit.device, f"{format_bytes(limit.nbytes)}: {limit.reason}")]


def _versions(machine: "Machine") -> Rows:
    found = machine.versions
    return [
        ("torch-lms", found.torch_lms or "not installed (run from source)"),
        ("torch", found.torch),
        ("Python", found.python),
        ("system", found.system),
        ("CUDA", found.cuda or "none (this PyTorch is built without it)"),
        ("cuDNN", str(found.cudnn or "none")),
        ("NVIDIA driver", found.nvidia_driver or "none"),
    ]


def _devices(machine: "Machine") -> Iterator[tuple[str, str]]:
    for device in machine.accelerators:
        free = format_bytes(device.free_bytes)
        total = format_bytes(device.total_bytes)
        yield device.device, f"{device.model}, {free} free of {total}"
    cpu = machine.processor
    yield "cpu", f"{cpu.model}, {cpu.usable_cores} of {cpu.cores} cores usable, {cpu.torch_threads} threads for torch"


def _memory(machine: "Machine") -> Iterator[tuple[str, str]]:
    memory = machine.memory
    binding = memory.binding()[0]
    yield "total RAM", format_bytes(memory.total)
    for name, free in memory.free_under_each().items():
        yield name, f"{format_bytes(free)} free" + (", which binds" if name == binding else "")
    for name, limit in (("cgroup limit", memory.cgroup_limit), ("RLIMIT_DATA", memory.rlimit_data)):
        if limit is None:
            yield name, "unlimited"
    locking = machine.page_locking
    ulimit = "unlimited" if locking.ulimit_bytes is None else format_bytes(locking.ulimit_bytes)
    yield "page-locked", f"ulimit -l is {ulimit}{_locking_trial(machine)}"


def _locking_trial(machine: "Machine") -> str:
    trial = machine.page_locking
    if trial.locked_bytes is None:
        return "; not needed without an accelerator"
    if trial.locked_bytes == 0:
        return f"; the driver refused: {trial.refusal}"
    return f"; the driver locked {format_bytes(trial.locked_bytes)} in {format_seconds(trial.seconds)}"


def _spill(machine: "Machine") -> Rows:
    spill = machine.spill
    return [
        ("path", str(spill.path)),
        ("file system", spill.filesystem),
        ("free", f"{format_bytes(spill.free_bytes)} of {format_bytes(spill.total_bytes)}"),
        ("direct I/O", "yes" if spill.direct else "no"),
    ]


def _speed(bytes_per_s: float | None, note: str) -> str:
    return f"not measured: {note}" if bytes_per_s is None else f"{format_bytes(bytes_per_s)}/s"


def _show_tables(console: "Console", sections: dict[str, Rows], warnings: tuple[str, ...]) -> None:
    from rich.table import Table

    table = Table(show_header=False, show_edge=False, box=None, pad_edge=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for title, rows in sections.items():
        for number, (name, value) in enumerate(rows):
            table.add_row("" if number else title, name, value, end_section=number == len(rows) - 1)
    console.print(table)
    for warning in warnings:
        console.print(f"[bold yellow]warning[/] {_escaped(warning)}", soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _show_text(console: "Console", sections: dict[str, Rows], warnings: tuple[str, ...]) -> None:
    lines = []
    for title, rows in sections.items():
        lines += [title, *(f"  {name:<18} {value}" for name, value in rows)]
    lines += [f"warning: {warning}" for warning in warnings]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
