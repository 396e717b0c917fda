"""How long a step of many small operations takes at half of its memory, over what it takes without LMS.

python benchmarks/small_pages.py            # two minutes; writes results/small-pages-<machine>.json
python benchmarks/small_pages.py --quick    # seconds: does it work at all?

A GRU in both directions, of two layers over 96 time steps: 11,593 operations, and nearly all tensors of 11 KB. Two
processes take turns, one with LMS, one without, so that what slows the machine slows both. The losses are compared.
"""

import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

import click
import torch
from overhead import RESULTS, Spread, keep, slug
from rich.console import Console
from torch import nn

import torch_lms
from torch_lms.runtime.probe import probe

FORMAT = 1
GOAL = 2.0
"""Most that a step may take, as a multiple of one without LMS."""

_STEPS, _BATCH, _WIDTH = 96, 44, 64
_MIN_SIZE = 4096
_PLANNED_STEPS = 12
"""After so many the better plan is there."""

_MAX_WARM_UP = 100
_REST_S = 0.02
"""After which the other process's OpenMP threads do not spin any more."""


class Training:
    """Of the GRU, by stochastic gradient descent."""

    def __init__(self, steps: int) -> None:
        torch.manual_seed(0)
        self.gru = nn.GRU(_WIDTH, _WIDTH, num_layers=2, bidirectional=True)
        self.head = nn.Linear(2 * _WIDTH, 4)
        self.optimizer = torch.optim.SGD([*self.gru.parameters(), *self.head.parameters()], lr=0.01)
        self.batch = torch.randn(steps, _BATCH, _WIDTH)

    def step(self) -> tuple[float, float]:
        """Seconds that it took, and the loss."""
        began = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.head(self.gru(self.batch)[0]).square().mean()
        loss.backward()
        self.optimizer.step()
        if torch_lms.is_enabled():
            torch_lms.step()
        return time.perf_counter() - began, loss.item()


def demand_bytes(steps: int) -> int:
    """What a step needs."""
    with torch_lms.session("1TB", min_size=_MIN_SIZE) as lms:
        training = Training(steps)
        for _ in range(3):
            training.step()
        return lms.stats().demand_bytes


def without(parent: Connection, steps: int) -> None:
    """A process without LMS: one step whenever the parent asks for one."""
    _serve(parent, Training(steps))


def within(parent: Connection, steps: int, limit: int) -> None:
    """One with LMS, whose plan is there."""
    with torch_lms.session(limit, min_size=_MIN_SIZE) as lms:
        training, losses = Training(steps), []
        while lms.stats().planned_steps < _PLANNED_STEPS and len(losses) < _MAX_WARM_UP:
            losses.append(training.step()[1])
        parent.send(losses)
        before = lms.stats()
        served = _serve(parent, training)
        stats = lms.stats()
        parent.send(
            {
                "planned": stats.planned_steps - before.planned_steps,
                "evictions": (stats.evictions - before.evictions) / served,
                "fetches": (stats.fetches - before.fetches) / served,
                "waited_s": (stats.stall_s - before.stall_s) / served,
            }
        )


def _serve(parent: Connection, training: Training) -> int:
    served = 0
    while parent.recv():
        parent.send(training.step())
        served += 1
    return served


@click.command()
@click.option("--rounds", default=60, show_default=True)
@click.option("--quick", is_flag=True, help="A short GRU, three rounds; the figures mean nothing.")
@click.option("--output", type=click.Path(path_type=Path), help="Default: results/small-pages-<machine>.json.")
def main(rounds: int, quick: bool, output: Path | None) -> None:
    """Measure steps of many small operations at half of their memory."""
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    machine, load = probe(None, measure=False), os.getloadavg()[0]
    steps, rounds = (12, 3) if quick else (_STEPS, rounds)
    limit = demand_bytes(steps) // 2
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    stock, stocks = spawn.Pipe()
    processes = [
        spawn.Process(target=within, args=(theirs, steps, limit)),
        spawn.Process(target=without, args=(stocks, steps)),
    ]
    for process in processes:
        process.start()
    for end in (theirs, stocks):
        end.close()  # so that it is noticed if a process ends
    losses = ours.recv()

    def step(of: Connection) -> tuple[float, float]:
        time.sleep(_REST_S)
        of.send(True)
        seconds, loss = of.recv()
        return seconds, loss

    expected = [step(stock)[1] for _ in losses]
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        (lms_s, lms_loss), (stock_s, stock_loss) = step(ours), step(stock)
        losses.append(lms_loss)
        expected.append(stock_loss)
        times.append((lms_s, stock_s))
    ours.send(False)
    stock.send(False)
    told = ours.recv()
    for process in processes:
        process.join()
    ratio = Spread.of([lms_s / stock_s for lms_s, stock_s in times])
    stock_s = statistics.median(stock_s for _, stock_s in times)
    console.print(f"A step takes {ratio.median:.2f} times as long as without LMS (quartiles {ratio.lower:.2f} to")
    console.print(f"{ratio.upper:.2f}; 95 % interval {ratio.least:.2f} to {ratio.most:.2f}), which is {stock_s:.3f} s.")
    console.print(f"Goal: at most {GOAL}, {'met' if ratio.median <= GOAL else 'missed'}.")
    console.print(f"{told['planned']} of {rounds} steps followed a plan, with {told['evictions']:.0f} evictions and")
    console.print(f"{told['fetches']:.0f} fetches a step, for which it waited {told['waited_s']:.3f} s.")
    equal = sum(map(float.__eq__, losses, expected))
    console.print(f"Losses equal to the bit: {equal} of {len(losses)}.")
    if output is None and not quick:
        output = RESULTS / f"small-pages-{slug(machine)}.json"
    if output is not None:
        figures = {"goal": GOAL, "limit": limit, "ratio": asdict(ratio), "stock_s": stock_s, "steps": told}
        keep(output, FORMAT, machine, load, figures)
        console.print(f"written to {output}")
    if equal != len(losses) or told["planned"] != rounds:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
