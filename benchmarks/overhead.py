"""What LMS costs while everything fits: per operation, and per training step. See README.md for how to read it.

python benchmarks/overhead.py            # 20 minutes; writes results/overhead-<machine>.json
python benchmarks/overhead.py --quick    # seconds: does it work at all?
"""

import gc
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from nets import UNet3d, encoder, resnet
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lms
from torch_lms.runtime.probe import Machine, probe

FORMAT = 3
RESULTS = Path(__file__).parent / "results"
GOAL = 1.01
"""Most that a step may take with LMS and the native interposer, as a multiple of one without."""

WARM_UP = 3
"""Steps of a session before one is timed: what is first seen costs more."""

HEAP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""The C library's, for the whole process: freed memory stays. Else it is a matter of what happens to lie at the end of
the heap whether a step faults a part of its memory in anew.
"""

IDLE_LOAD = 0.3
MIB = 1 << 20


class EmptyMode(TorchDispatchMode):
    """The least that any pager for stock PyTorch pays: a dispatch mode that does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def lms(interposer: str, min_size: int) -> Iterator[None]:
    """LMS with more memory than is needed, and one of the two interposers. Fails if it moved anything."""
    os.environ["TORCH_LMS_INTERPOSER"] = interposer
    with torch_lms.session(limit="auto", min_size=min_size, device=_device) as session:
        yield
        stats = session.stats()
    if stats.evicted_bytes or stats.clean_drops:
        raise SystemExit(f"memory was short, so this is no measurement of what LMS costs when it is not:\n{stats}")


INTERPOSERS = ("python", "native")

Variant = Callable[[], AbstractContextManager[Any]]


def variants(min_size: int) -> dict[str, Variant]:
    """What is compared, by name."""
    interposers = {name: partial(lms, name, min_size) for name in INTERPOSERS}
    return {"stock": nullcontext, "empty": EmptyMode, **interposers}


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of ``count`` samples; with 95 % confidence the true median is from ``least`` to ``most``."""

    median: float
    lower: float
    upper: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, samples: list[float]) -> "Spread":
        lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
        ordered, count = sorted(samples), len(samples)
        rank = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))  # of a binomial distribution
        return cls(median, lower, upper, ordered[rank], ordered[count - 1 - rank], count)


# -- operations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpCase:
    """Calls of one operator. The tensors are small, so that nearly all of the time is what leads to the kernel;
    whether they are pages is a matter of ``min_size``."""

    name: str
    paged: bool
    make: Callable[[], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class OpResult:
    """Microseconds per call, by variant. ``added_us``: by interposer, of LMS over stock, round by round."""

    name: str
    paged: bool
    us: dict[str, Spread]
    added_us: dict[str, Spread]


_FLOATS = 64

_device = torch.device("cpu")
"""Where tensors are; set by ``main``."""


def settle() -> None:
    """Wait until the device has done what it was asked."""
    if _device.type != "cpu":
        torch.accelerator.synchronize(_device)


def _ones() -> torch.Tensor:
    return torch.ones(_FLOATS, device=_device)


def _add() -> Callable[[], object]:
    return partial(torch.add, _ones(), _ones())


def _add_in_place() -> Callable[[], object]:
    return partial(_ones().add_, _ones())


def _view() -> Callable[[], object]:
    return partial(_ones().view, 8, 8)


def _foreach() -> Callable[[], object]:
    return partial(torch._foreach_add_, [_ones() for _ in range(50)], 1.0)


OPS = [
    OpCase(name, paged, make)
    for paged in (False, True)
    for name, make in (
        ("add, a new result", _add),
        ("add_, in place", _add_in_place),
        ("view", _view),
        ("_foreach_add_ of 50", _foreach),
    )
]


def measure_op(case: OpCase, rounds: int, calls: int) -> OpResult:
    """Rounds of ``calls`` calls each, the variants in turn."""
    compared = variants(4 * _FLOATS if case.paged else MIB)
    times: dict[str, list[float]] = {name: [] for name in compared}
    call = case.make()
    for number in range(rounds + 1):
        for name, entered in _in_turn(compared, number):
            with entered():
                for _ in range(20):
                    call()
                settle()
                began = time.perf_counter()
                for _ in range(calls):
                    call()
                seconds = time.perf_counter() - began  # of the host: a device may still be at work
                settle()
            if number:  # the first round warms up
                times[name].append(seconds / calls * 1e6)
    added = {
        name: Spread.of([ours - stock for ours, stock in zip(times[name], times["stock"], strict=True)])
        for name in INTERPOSERS
    }
    return OpResult(case.name, case.paged, {name: Spread.of(samples) for name, samples in times.items()}, added)


# -- training steps --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepCase:
    """A model in training; ``shape`` is that of a batch. Tensors from ``min_size`` bytes on are pages."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    min_size: int = MIB


STEPS = [
    StepCase("ResNet-18, 16 x 224^2", partial(resnet, 18), (16, 3, 224, 224)),
    StepCase("transformer encoder, 2 layers of 512, 16 x 384 tokens", encoder, (16, 384, 512)),
    StepCase("3D U-Net, width 16, 80^3", UNet3d, (1, 1, 80, 80, 80)),
    StepCase(
        "transformer encoder, 4 layers of 64, 2 x 128 tokens, all pages", partial(encoder, 4, 64), (2, 128, 64), 256
    ),
]
QUICK_STEPS = [
    StepCase("ResNet-18, 2 x 64^2", partial(resnet, 18), (2, 3, 64, 64)),
    StepCase("transformer encoder, 1 layer of 64", partial(encoder, 1, 64), (2, 16, 64)),
    StepCase("3D U-Net, width 4, 16^3", partial(UNet3d, 4), (1, 1, 16, 16, 16)),
]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Seconds per step, and ratios to stock, round by round, by variant."""

    name: str
    ops: int
    stock_s: Spread
    over_stock: dict[str, Spread]


class CountOps(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def measure_step(case: StepCase, seconds: float) -> StepResult:
    """One step of each variant in turn, for about ``seconds``."""
    torch.manual_seed(0)
    model, batch = case.make().to(_device), torch.randn(case.shape, device=_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        settle()

    for _ in range(2):  # memory of the heap, kernels' own caches, momentum
        step()
    with CountOps() as counted:
        step()
    compared = variants(case.min_size)
    wall: dict[str, list[float]] = {name: [] for name in compared}
    until, number = time.perf_counter() + seconds, 0
    while number < 3 or time.perf_counter() < until:
        for name, entered in _in_turn(compared, number):
            gc.collect()
            with entered():
                for _ in range(WARM_UP):
                    step()
                began = time.perf_counter()
                step()
                wall[name].append(time.perf_counter() - began)
        number += 1
    return StepResult(
        case.name,
        counted.count,
        Spread.of(wall["stock"]),
        {name: Spread.of(_ratios(wall, name)) for name in wall if name != "stock"},
    )


def _ratios(times: dict[str, list[float]], name: str) -> list[float]:
    """Of neighbours: what slows the machine for seconds slows both."""
    return [a / b for a, b in zip(times[name], times["stock"], strict=True)]


def _in_turn(choices: dict[str, Variant], number: int) -> list[tuple[str, Variant]]:
    """Another one is first in each round."""
    items = list(choices.items())
    first = number % len(items)
    return items[first:] + items[:first]


# -- report ----------------------------------------------------------------------------------------------------------


def op_table(results: list[OpResult]) -> Table:
    """Microseconds per call."""
    table = Table("operation", "tensors", title="Per operation, microseconds (median; quartiles of what LMS adds)")
    for heading in ("stock", "empty mode", *INTERPOSERS, *(f"{name} adds" for name in INTERPOSERS)):
        table.add_column(heading, justify="right")
    for r in results:
        added = (f"{s.median:.2f} ({s.lower:.2f}-{s.upper:.2f})" for s in r.added_us.values())
        times = (f"{spread.median:.2f}" for spread in r.us.values())
        table.add_row(r.name, "pages" if r.paged else "below min_size", *times, *added)
    return table


def step_table(results: list[StepResult]) -> Table:
    """Ratios of whole steps."""
    table = Table("model", title=f"Per training step, ratio to stock (median, 95 % interval; goal at most {GOAL})")
    for heading in ("ops", "stock, s", "empty mode", *INTERPOSERS, "rounds", "goal"):
        table.add_column(heading, justify="right")
    for r in results:
        ratios = (f"{s.median:.3f} ({s.least:.3f}-{s.most:.3f})" for s in r.over_stock.values())
        native = r.over_stock["native"]
        verdict = "met" if native.median <= GOAL else "missed"
        table.add_row(r.name, str(r.ops), f"{r.stock_s.median:.4f}", *ratios, str(native.count), verdict)
    return table


def slug(machine: Machine) -> str:
    """The machine's processor as a file name."""
    words = re.sub(r"\((r|tm)\)", "", machine.processor.model, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "cpu"


def keep(output: Path, format_: int, machine: Machine, load: float, figures: dict[str, Any]) -> None:
    """Write ``figures`` to ``output``, with when, where and by what they were taken."""
    result = {
        "format": format_,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": asdict(machine.processor), "memory_bytes": machine.memory.total, "load": load},
        "versions": asdict(machine.versions),
        **figures,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")


@click.command()
@click.option("--seconds", default=400.0, show_default=True, help="For each of the models.")
@click.option("--threads", type=int, help="Of torch (default: all cores that this process may use).")
@click.option("--device", default="cpu", show_default=True)
@click.option("--quick", is_flag=True, help="Tiny models, few rounds; the figures mean nothing.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Default: results/overhead-<machine>.json; none if quick."
)
def main(seconds: float, threads: int | None, device: str, quick: bool, output: Path | None) -> None:
    """Measure what LMS costs while everything fits."""
    if not HEAP.keys() <= os.environ.keys():  # they are read when the process begins
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | HEAP)
    global _device
    _device = torch.device(device)
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    machine, load = probe(None, measure=False), os.getloadavg()[0]
    if load > IDLE_LOAD:
        console.print(f"The machine is not idle (load {load:.1f}): expect wide quartiles.", style="yellow")
    with console.status("operations"):
        ops = [measure_op(case, *((5, 30) if quick else (25, 1000))) for case in OPS]
    console.print(op_table(ops))
    steps = []
    for case in QUICK_STEPS if quick else STEPS:
        with console.status(case.name):
            steps.append(measure_step(case, 0.0 if quick else seconds))
    console.print(step_table(steps))
    if output is None and not quick:
        output = RESULTS / f"overhead-{slug(machine)}{'' if device == 'cpu' else f'-{_device.type}'}.json"
    if output is not None:
        figures = {
            "device": device,
            "threads": torch.get_num_threads(),
            "goal": GOAL,
            "ops": [asdict(op) for op in ops],
            "steps": [asdict(step) for step in steps],
        }
        keep(output, FORMAT, machine, load, figures)
        console.print(f"written to {output}")


if __name__ == "__main__":
    main()
