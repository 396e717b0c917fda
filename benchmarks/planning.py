"""What planning takes of a training whose shapes change, as those of detectors do.

python benchmarks/planning.py            # some minutes
python benchmarks/planning.py --quick    # does it work at all?

A ResNet-18 is trained on square crops of several sizes, drawn by chance, under half of its demand. The
output has the seconds of a processor that plans took, beside those of the wall, and the longest time that a step
spent on plans.
"""

import random
import sys
import time
from dataclasses import dataclass
from functools import partial

import click
import torch
from nets import resnet

import torch_lms
from torch_lms.engine import PlanCache
from torch_lms.runtime import api
from torch_lms.runtime.stats import Stats

SIZES = (256, 320, 384)
STEPS = 30
SEED = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one training.

    Attributes:
        wall_s: from its first step to its last.
        waited_s: the longest time that the end or the beginning of a step took for plans: to order and to take them.
        stats: of the session.
    """

    wall_s: float
    waited_s: float
    stats: Stats

    @property
    def share(self) -> float:
        """Planning's seconds over the wall's."""
        return self.stats.planning_s / self.wall_s


class _Waits:
    """Measures how long a step is kept by its plans."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    def watch(self) -> None:
        """Time what the engine asks of its plans."""
        assert api._running is not None
        for backend in api._running._session._table.backends:
            if isinstance(backend.plans, PlanCache):
                for name in ("begin_step", "end_step"):
                    setattr(backend.plans, name, partial(self._timed, getattr(backend.plans, name)))

    def _timed(self, call, *args):  # type: ignore[no-untyped-def]
        started_s = time.perf_counter()
        try:
            return call(*args)
        finally:
            self.longest_s = max(self.longest_s, time.perf_counter() - started_s)


def training(batch: int):  # type: ignore[no-untyped-def]
    """A function that takes a step at a size."""
    torch.manual_seed(SEED)
    net = resnet(18)
    update = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(size: int) -> None:
        update.zero_grad()
        net(torch.randn(batch, 3, size, size)).square().mean().backward()
        update.step()

    return step


def measure(batch: int, sizes: tuple[int, ...], steps: int) -> Outcome:
    """Train, and see what planning took."""
    with torch_lms.session("64GB", "64KiB") as lms:
        step = training(batch)
        for _ in range(2):
            step(max(sizes))
        limit = lms.stats().demand_bytes // 2
    dice = random.Random(SEED)
    waits = _Waits()
    step = training(batch)
    with torch_lms.session(limit, "64KiB") as lms:
        waits.watch()
        started_s = time.perf_counter()
        for _ in range(steps):
            step(dice.choice(sizes))
        wall_s = time.perf_counter() - started_s
        return Outcome(wall_s, waits.longest_s, lms.stats())


@click.command()
@click.option("--quick", is_flag=True, help="Small and short: does it work at all?")
@click.option("--batch", default=8)
@click.option("--steps", default=STEPS)
def main(quick: bool, batch: int, steps: int) -> None:
    """Print what planning took."""
    sizes = (64, 96) if quick else SIZES
    found = measure(2 if quick else batch, sizes, 6 if quick else steps)
    print(f"ResNet-18, {found.stats.steps} steps at {', '.join(map(str, sizes))}, {found.wall_s:.1f} s")
    print(f"planning: {found.stats.planning_s:.2f} s of a processor, {found.share:.1%} of the wall time")
    print(f"longest time that a step spent on plans: {found.waited_s * 1e3:.1f} ms")
    print(f"steps that followed a plan: {found.stats.planned_steps}, that left theirs: {found.stats.diverged_steps}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
