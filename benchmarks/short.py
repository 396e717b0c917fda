"""What LMS costs the host while room is short: for each operation, action and recomputation of planned steps, and for
each operation of steps without a plan.

python benchmarks/short.py                  # minutes; writes results/short-<machine>.json
python benchmarks/short.py --device cuda    # pages of a GPU; writes results/short-<machine>-cuda.json
python benchmarks/short.py --quick          # seconds: does it work at all?

Where Python performs the moves of the CPU, pages go to a store that costs nothing: their memory is put aside. What is
left is what LMS itself does. Where the native interposer does, they go to a file in memory, and that is counted, too.
On a device with streams they go to host memory, and what the host takes to ask for that is counted, not the copies.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import click
import torch
from overhead import RESULTS, Spread, keep, slug
from rich.console import Console
from rich.table import Table

import torch_lms
from torch_lms.capture.registry import STORAGE, Entry
from torch_lms.engine import Speeds, engine
from torch_lms.residency import PageId
from torch_lms.runtime import api
from torch_lms.runtime.calibrate import actions_of
from torch_lms.runtime.cpu import CpuExecutor
from torch_lms.runtime.probe import probe

FORMAT = 2
GOALS = {
    "operation": 2.0,
    "action": 10.0,
    "recomputation": None,
    "operation without a plan": None,
}
"""Most microseconds with the native interposer, if there is such a goal."""

_SLOW = Speeds(1e4, 1e4)
"""Links over which nothing is moved that can be recomputed: bytes per second."""

_IN_MEMORY = "/dev/shm"
_FLOATS = 256
_PAGE_BYTES = 4 * _FLOATS
_WARM_UP = 6
_STEPS = 5


@contextmanager
def free_store() -> Iterator[None]:
    """Inside, Python moves pages of the CPU, and that costs nothing: their memory is put aside, and comes back."""
    aside: dict[PageId, torch.UntypedStorage] = {}

    def swap(entry: Entry, other: torch.UntypedStorage) -> torch.UntypedStorage:
        storage = entry()
        if storage is not None:
            STORAGE._swap_data_ptr_(storage, other)
        return other

    def release(_: CpuExecutor, entry: Entry) -> None:
        aside[entry.page] = swap(entry, torch.UntypedStorage(0))

    def start_fetch(_: CpuExecutor, entry: Entry) -> None:
        swap(entry, aside.pop(entry.page))

    def forget(_: CpuExecutor, entry: Entry) -> None:
        aside.pop(entry.page, None)

    def nothing(*_: object) -> None:
        return

    replaced = {
        "start_evict": nothing,
        "finish_evict": nothing,
        "release": release,
        "start_fetch": start_fetch,
        "finish_fetch": nothing,
        "discard": forget,
        "forget": forget,
        "landed": lambda _: [],
    }
    with (
        patch.multiple(CpuExecutor, **replaced),
        patch.object(api, "NativeCpuExecutor", lambda disk, _: CpuExecutor(disk)),
    ):
        yield


def new_step(away: int, ops: int, device: torch.device) -> Callable[[], None]:
    """A step that makes ``away`` pages, which have to leave, then runs ``ops`` operations, then uses the pages."""
    # Two in turns: what is made of a page is not dropped while an operation uses that.
    firsts = [torch.ones(_FLOATS, device=device) for _ in range(2)]

    def step() -> None:
        pages = [firsts[number % 2] + number for number in range(away)]
        y = firsts[0] * 2
        for _ in range(ops):
            y = y + 1
        for page in pages:
            y = y + page

    return step


def seconds_of(step: Callable[[], None], device: torch.device) -> float:
    """Of a processor, for one: the mean; on a device with streams, whose own threads disturb the host, the least."""
    times = []
    for _ in range(_STEPS):
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        began = time.thread_time()
        step()
        if torch_lms.is_enabled():
            torch_lms.step()
        times.append(time.thread_time() - began)
    return statistics.fmean(times) if device.type == "cpu" else min(times)


class Way(NamedTuple):
    """Who sees operations, and who moves pages."""

    interposer: str
    store: Callable[[], AbstractContextManager[None]]


WAYS = {
    "python": Way("python", free_store),
    "native, moves in Python": Way("native", free_store),
    "native": Way("native", nullcontext),
}

WAYS_OF_DEVICES = {"python": Way("python", nullcontext), "native": Way("native", nullcontext)}
"""Those with streams."""


def added(
    way: Way, away: int, ops: int, device: torch.device, recompute: bool = False, policy: str = "planned"
) -> tuple[float, float]:
    """What LMS adds to a step: seconds of a processor, and actions; with ``recompute``, recomputations instead."""
    step = new_step(away, ops, device)
    step()
    stock_s = seconds_of(step, device)
    os.environ["TORCH_LMS_INTERPOSER"] = way.interposer
    # The pages that all others are made of, that which grows, and what an operation makes beside them.
    limit = max(5, away // 2) * _PAGE_BYTES
    settings = {"limit": limit, "min_size": _PAGE_BYTES, "device": device, "spill_dir": _IN_MEMORY, "policy": policy}
    speeds = patch.object(engine, "Speeds", lambda *_: _SLOW) if recompute else nullcontext()
    with way.store(), speeds, torch_lms.session(recompute=recompute, **settings) as lms:
        for _ in range(_WARM_UP):
            step()
            torch_lms.step()
        lms.reset_stats()
        lms_s = seconds_of(step, device)
        stats = lms.stats()
    if policy == "planned" and stats.planned_steps != _STEPS:
        raise SystemExit(f"{stats.planned_steps} of {_STEPS} steps were planned, so this measures something else")
    if recompute and stats.evictions > stats.recomputes / 4:
        raise SystemExit(f"{stats.evictions} pages were moved where {stats.recomputes} were recomputed")
    return lms_s - stock_s, (stats.recomputes if recompute else actions_of(stats)) / _STEPS


def measure(way: Way, rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Microseconds for an operation without actions, for an action with its share of the operation, and for recording
    an operation, dropping what it made and repeating it, by round. The first also for steps without a plan.
    """
    found: dict[str, list[float]] = {what: [] for what in GOALS}
    for _ in range(rounds):
        (few_s, _), (many_s, _) = (added(way, 20, ops, device, policy="reactive") for ops in (200, 1200))
        found["operation without a plan"].append((many_s - few_s) / 1000 * 1e6)
        few_s, _ = added(way, 20, 200, device)
        many_s, _ = added(way, 20, 1200, device)
        op_s = (many_s - few_s) / 1000
        more_s, more = added(way, 100, 200, device)
        _, few = added(way, 20, 200, device)
        found["operation"].append(op_s * 1e6)
        found["action"].append((more_s - few_s - 160 * op_s) / (more - few) * 1e6)
        (more_s, more), (few_s, few) = (added(way, away, 200, device, recompute=True) for away in (100, 20))
        found["recomputation"].append((more_s - few_s - 160 * op_s) / (more - few) * 1e6)
    return found


@click.command()
@click.option("--rounds", default=9, show_default=True)
@click.option("--quick", is_flag=True, help="Three rounds; the figures mean little.")
@click.option("--device", "name", default="cpu", show_default=True, help="Whose pages.")
@click.option("--output", type=click.Path(path_type=Path), help="Default: results/short-<machine>.json; none if quick.")
def main(rounds: int, quick: bool, name: str, output: Path | None) -> None:
    """Measure what LMS costs the host while room is short."""
    os.environ["TORCH_LMS_PLANNING"] = "at-once"
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    machine, load, device = probe(None, measure=False), os.getloadavg()[0], torch.device(name)
    ways = WAYS if device.type == "cpu" else WAYS_OF_DEVICES
    found = {name: measure(way, 3 if quick else rounds, device) for name, way in ways.items()}
    spreads = {name: {what: Spread.of(times) for what, times in its.items()} for name, its in found.items()}
    table = Table("what", title="While room is short, microseconds that LMS takes (median; quartiles)")
    for heading in (*ways, "goal, native"):
        table.add_column(heading, justify="right")
    for what, goal in GOALS.items():
        cells = (f"{s.median:.1f} ({s.lower:.1f}-{s.upper:.1f})" for s in (spreads[name][what] for name in ways))
        verdict = ""
        if goal is not None:
            verdict = f"{goal:.0f}: {'met' if statistics.median(found['native'][what]) <= goal else 'missed'}"
        table.add_row(f"{'a' if what == 'recomputation' else 'an'} {what}", *cells, verdict)
    console.print(table)
    if output is None and not quick:
        output = RESULTS / f"short-{slug(machine)}{'' if device.type == 'cpu' else f'-{device.type}'}.json"
    if output is not None:
        us = {name: {what: asdict(s) for what, s in its.items()} for name, its in spreads.items()}
        keep(output, FORMAT, machine, load, {"goals": GOALS, "us": us})
        console.print(f"written to {output}")


if __name__ == "__main__":
    main()
