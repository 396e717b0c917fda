"""A compiled perceptron under a limit, beside the same eagerly and without LMS. See README.md.

python benchmarks/compiled.py            # minutes; writes results/compiled-<machine>.json
python benchmarks/compiled.py --quick    # does it work at all?
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from overhead import RESULTS, Spread, keep, slug
from rich.console import Console
from rich.table import Table
from torch import nn

import torch_lms
from torch_lms.runtime.api import Lms
from torch_lms.runtime.probe import probe

FORMAT = 1
LIMIT = 25_000_000
MIN_SIZE = 64 << 10
GOALS = {"whole": 33_000_000, "blocks": 26_000_000}
"""Most bytes of pages that may be on the device."""

_WIDTH, _BATCH = 512, 2048
_WARM_UP = 4
_STEPS = 3


def new_model() -> nn.Sequential:
    """Needs 107 MB for a step when it runs eagerly."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(9)))


def by_blocks(model: nn.Sequential) -> nn.Sequential:
    """Each compiled by itself."""
    for block in model:
        block.compile()
    return model


def by_pieces(model: nn.Sequential) -> Callable[..., Any]:
    """Cut by our backend."""
    return torch.compile(model, backend="lms")


@dataclass(frozen=True)
class Way:
    """To train.

    Attributes:
        title: for people.
        compiled: makes of the model what is called.
        is_limited: whether LMS is on.
        like: the way whose losses must be the same to the bit.
    """

    title: str
    compiled: Callable[[nn.Sequential], Callable[..., Any]]
    is_limited: bool
    like: str


WAYS = {
    "eager": Way("eager, stock", lambda model: model, False, "eager"),
    "stock": Way("compiled as a whole, stock", torch.compile, False, "stock"),
    "eager_lms": Way("eager, LMS", lambda model: model, True, "eager"),
    "blocks": Way("each block compiled, LMS", by_blocks, True, "stock"),
    "whole": Way('compiled as a whole by backend="lms", LMS', by_pieces, True, "stock"),
}


class Training:
    """One way to train, in blocks of steps, with what came of it."""

    def __init__(self, way: Way) -> None:
        self.way = way
        model = new_model()
        self._parameters = list(model.parameters())
        self._call = way.compiled(model)
        self._optimizer = torch.optim.SGD(self._parameters, lr=0.01)
        self._batches = torch.Generator().manual_seed(1)
        self.losses: list[float] = []
        self.peak_bytes = 0

    def _step(self) -> None:
        batch = torch.randn(_BATCH, _WIDTH, generator=self._batches)
        loss = (self._call(batch) - batch).square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.losses.append(loss.item())

    def round(self) -> float:
        """Seconds for a step, in which a plan is followed where LMS is on."""
        with _session(LIMIT) if self.way.is_limited else nullcontext() as lms:
            for _ in range(_WARM_UP):
                self._step()
            began = time.perf_counter()
            for _ in range(_STEPS):
                self._step()
            seconds = (time.perf_counter() - began) / _STEPS
            if lms is not None:
                self.peak_bytes = max(self.peak_bytes, lms.stats().peak_resident_bytes)
        return seconds


def _session(limit: int | str) -> AbstractContextManager[Lms]:
    return torch_lms.session(limit=limit, min_size=MIN_SIZE, device="cpu")


def demand_bytes() -> int:
    """Of an eager step."""
    training = Training(WAYS["eager"])
    with _session("auto") as lms:
        training._step()
        training._step()
        return lms.stats().demand_bytes


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--quick", is_flag=True, help="Two rounds; the figures mean little.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Default: results/compiled-<machine>.json; none if quick."
)
def main(rounds: int, quick: bool, output: Path | None) -> None:
    """Measure what a compiled model needs under a limit, and how long its steps take."""
    os.environ["TORCH_LMS_PLANNING"] = "at-once"
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    machine, load = probe(None, measure=False), os.getloadavg()[0]
    demand = demand_bytes()
    trainings = {name: Training(way) for name, way in WAYS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(2 if quick else rounds):
        for name, training in trainings.items():
            seconds[name].append(training.round())
    ratios = {name: Spread.of([a / b for a, b in zip(seconds[name], seconds["stock"], strict=True)]) for name in WAYS}
    peaks = {name: training.peak_bytes for name, training in trainings.items()}
    equal = {name: training.losses == trainings[training.way.like].losses for name, training in trainings.items()}
    title = f"Demand {demand / 1e6:.1f} MB, limit {LIMIT / 1e6:.0f} MB; steps over those compiled by stock PyTorch"
    table = Table("way", "peak", "goal", "losses", "step (median; quartiles)", title=title)
    for name, way in WAYS.items():
        goal = GOALS.get(name)
        verdict = "" if goal is None else f"{goal / 1e6:.0f} MB: {'met' if peaks[name] <= goal else 'missed'}"
        peak = f"{peaks[name] / 1e6:.1f} MB" if way.is_limited else ""
        spread = ratios[name]
        bits = f"{'equal' if equal[name] else 'differ from'} those of {WAYS[way.like].title}"
        table.add_row(way.title, peak, verdict, bits, f"{spread.median:.2f} ({spread.lower:.2f}-{spread.upper:.2f})")
    console.print(table)
    if output is None and not quick:
        output = RESULTS / f"compiled-{slug(machine)}.json"
    if output is not None:
        result = {
            "demand_bytes": demand,
            "limit_bytes": LIMIT,
            "goals": GOALS,
            "peak_bytes": {name: peaks[name] for name, way in WAYS.items() if way.is_limited},
            "is_equal": equal,
            "ratio_to_stock_compiled": {name: asdict(spread) for name, spread in ratios.items()},
        }
        keep(output, FORMAT, machine, load, result)
        console.print(f"written to {output}")


if __name__ == "__main__":
    main()
