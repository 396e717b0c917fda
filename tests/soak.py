"""A long training whose steps fail again and again, with the garbage collector off: does anything grow?

    python -m tests.soak --steps 1000

The network is small, and trains under a third of its demand. Batch and image size change with every step; of every ten
steps one fails in forward, one in backward, one in the optimizer, and one asks for an operation that PyTorch refuses.
Figures are compared between two windows: after a warm-up, and at the end. oneDNN is off: it keeps something for every
shape that it has met, 47 MB in 1,000 steps of this training without LMS.
"""

import gc
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from statistics import mean
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lms
from tests.fault_rig import Oops, Trap, session_now, store_now, used_bytes
from torch_lms.runtime.api import Lms
from torch_lms.runtime.stats import Stats
from torch_lms.units import format_bytes

WARM_UP = 20
MOST_RSS_GROWTH = 0.05
_FAILURES = {2: "forward", 4: "backward", 6: "optimizer", 8: "operation"}
_PERIOD = 10
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RaisesAt(TorchDispatchMode):
    """Raises ``Oops`` at the n-th operation in its block."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._left = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._left -= 1
        if self._left == 0:
            raise Oops("in the middle of the optimizer's step")
        return func(*args, **(kwargs or {}))


class Network:
    """A convolutional network for images of any size, and its training."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._shapes = random.Random(0)
        self._trap = Trap()
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            self._trap,
            nn.Conv2d(8, 16, 3, stride=2),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 8),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def step(self, failing: str = "") -> None:
        """A step with a new shape; it raises in "forward", "backward", "optimizer" or an "operation" if told to."""
        batch, size = self._shapes.randint(2, 6), self._shapes.randint(12, 40)
        self._trap.armed = {failing}
        self.optimizer.zero_grad()
        output = self.model(torch.randn(batch, 3, size, size))
        if failing == "operation":
            output + torch.ones(7)
        output.square().mean().backward()
        if failing == "optimizer":
            with RaisesAt(len(list(self.model.parameters()))):
                self.optimizer.step()
        self.optimizer.step()


@dataclass(slots=True)
class Window:
    """What was seen in some steps: resident memory after each; the others after each whole step without gradients."""

    rss: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    spill_bytes: list[int] = field(default_factory=list)
    spill_file_bytes: list[int] = field(default_factory=list)
    host_bytes: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    live_bytes: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Soak:
    """A run.

    Attributes:
        steps: how many there were.
        demand_bytes, limit_bytes: of the training, and what it got.
        raised: how many steps failed, by where.
        first, last: the windows.
        stats: of the session.
    """

    steps: int
    demand_bytes: int
    limit_bytes: int
    raised: Counter[str]
    first: Window
    last: Window
    stats: Stats

    def growth(self) -> list[str]:
        """What grew, and by how much."""
        before, after = mean(self.first.rss), mean(self.last.rss)
        found = [f"rss: {before:,.0f} to {after:,.0f}"] if after > before * (1 + MOST_RSS_GROWTH) else []
        for name in (it.name for it in fields(Window) if it.name != "rss"):
            most, later = max(getattr(self.first, name)), max(getattr(self.last, name))
            if later > most:
                found.append(f"{name}: at most {most:,} to {later:,}")
        return found


def soak(steps: int) -> Soak:
    """Train so many steps (at least 60: warm-up and two windows), and watch."""
    length = min(100, (steps - WARM_UP) // 2)
    first, last, raised = Window(), Window(), Counter[str]()
    demand = _demand()
    with _by_counts_alone(), torch_lms.session(limit=demand // 3, min_size=1) as lms:
        network = Network()
        for number in range(steps):
            failing = _FAILURES.get(number % _PERIOD, "")
            try:
                network.step(failing)
            except (Oops, RuntimeError) as error:
                if not failing or (failing == "operation") == isinstance(error, Oops):
                    raise
                raised[failing] += 1
            for window, begin in ((first, WARM_UP), (last, steps - length)):
                if begin <= number < begin + length:
                    window.rss.append(_rss())
                    if number % _PERIOD == _PERIOD - 1:
                        _look(lms, network, window)
        lms.validate()
        stats = lms.stats()
    return Soak(steps, demand, demand // 3, raised, first, last, stats)


def _demand() -> int:
    """Bytes that the training needs at once, at the largest of some shapes."""
    with torch_lms.session(limit="64GB", min_size=1) as lms:
        network = Network()
        for _ in range(WARM_UP):
            network.step()
        return lms.stats().peak_resident_bytes


def _look(lms: Lms, network: Network, window: Window) -> None:
    """Everything that may leave has left, so that what lies below is what lives."""
    network.optimizer.zero_grad()
    lms.reclaim()
    store = store_now()
    with session_now().standing_still() as (backend,):
        window.live_bytes.append(backend.engine.pager.book.ledger.live)
    window.pages.append(session_now().page_count)
    window.spill_bytes.append(used_bytes())
    window.spill_file_bytes.append(store.file.size)
    window.host_bytes.append(lms.stats().host_bytes)
    window.descriptors.append(len(os.listdir("/proc/self/fd")))
    window.threads.append(threading.active_count())


def _rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


@contextmanager
def _by_counts_alone() -> Iterator[None]:
    """Whatever is freed in the block is freed by reference counts (N21), and no library keeps memory by shapes."""
    gc.collect()
    gc.disable()
    (enabled, *_) = torch.backends.mkldnn.set_flags(_enabled=False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=enabled)
        gc.enable()


def _table(run: Soak) -> Table:
    length = len(run.first.rss)
    shown = Table(
        "",
        f"steps {WARM_UP} to {WARM_UP + length}",
        f"steps {run.steps - length} to {run.steps}",
        title=f"{run.steps} steps under {format_bytes(run.limit_bytes)} of {format_bytes(run.demand_bytes)}",
    )
    shown.add_row("rss, mean", *(f"{mean(window.rss):,.0f}" for window in (run.first, run.last)))
    for name in (it.name for it in fields(Window) if it.name != "rss"):
        seen = [getattr(window, name) for window in (run.first, run.last)]
        shown.add_row(name.replace("_", " "), *(f"{min(values):,} to {max(values):,}" for values in seen))
    return shown


@click.command()
@click.option("--steps", default=1000, show_default=True)
def main(steps: int) -> None:
    """Train for long, fail often, and print what grew."""
    torch.set_num_threads(1)
    run = soak(steps)
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(_table(run))
    console.print(f"steps that failed: {', '.join(f'{n} in {where}' for where, n in sorted(run.raised.items()))}")
    console.print(str(run.stats), markup=False)
    for growth in run.growth():
        console.print(f"grew: {growth}")
    sys.exit(bool(run.growth()))


if __name__ == "__main__":
    main()
