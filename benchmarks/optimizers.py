"""How many bytes planned steps move out where the optimizer's state is most of what there is.

python benchmarks/optimizers.py             # two minutes; prints a table of docs/planning.md, the same on any machine
python benchmarks/optimizers.py --hidden    # larger layers, measured on this machine: how much of the copies is hidden

Twelve square layers, trained by several optimizers. One sweep is all that belongs to the parameters: weights, gradients
and states. The floor is the least that any schedule of the same operations must evict (see traffic.py), the optimum the
least for whole pages.
"""

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import click
import torch
from torch import nn, optim
from traffic import STEPS, WARM_UP, Step, demand_of, fixed_speeds, measure, one_thread, training

import torch_lms
from torch_lms.units import format_bytes

SIDE = 256
LAYERS = 12
LARGE_SIDE = 1024
LARGE_BATCH = 512
MEASURED_STEPS = 7

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD with momentum, foreach": partial(optim.SGD, lr=0.01, momentum=0.9, foreach=True),
    "Adam": partial(optim.Adam, foreach=False),
    "AdamW": partial(optim.AdamW, foreach=False),
    "AdamW, foreach": partial(optim.AdamW, foreach=True),
    "AdamW, fused": partial(optim.AdamW, fused=True),
    "Adafactor": partial(optim.Adafactor, foreach=False),
    "Muon": optim.Muon,
}


def layers(side: int = SIDE) -> nn.Module:
    return nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(LAYERS)))


def sweep_bytes(optimizer: Callable[..., optim.Optimizer]) -> int:
    """Bytes of weights, gradients and states."""
    model = layers()
    update = optimizer(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    update.step()
    states = [value for state in update.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in states) + sum(2 * parameter.nbytes for parameter in model.parameters())


def print_moved() -> None:
    """The table of what moves."""
    print("| optimizer | limit | one sweep | floor | evicted | of the floor | of the optimum |")
    print("|---|---|---|---|---|---|---|")
    with one_thread(), fixed_speeds():
        for name, optimizer in OPTIMIZERS.items():
            make = partial(training, layers, (8, SIDE), optimizer)
            demand = demand_of(make)
            for share in (2, 4, 8):
                found = measure(make, demand // share)
                evicted = found.stats.evicted_bytes / STEPS
                figures = (sweep_bytes(optimizer), found.floor, evicted)
                print(
                    f"| {name} | demand/{share} | {' | '.join(map(format_bytes, figures))} | "
                    f"{found.ratio:.3f} | {evicted / found.optimum:.3f} |",
                    flush=True,
                )


def seconds_of(steps: int, step: Step) -> float:
    """Of the median step."""
    taken = []
    for _ in range(steps):
        began_s = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)


def print_hidden() -> None:
    """The table of what is hidden."""
    print("| optimizer | limit | evicted | fetched | copies / stock step | copies hidden | step / stock step |")
    print("|---|---|---|---|---|---|---|")
    for name, optimizer in OPTIMIZERS.items():
        make = partial(training, partial(layers, LARGE_SIDE), (LARGE_BATCH, LARGE_SIDE), optimizer)
        _, step = make()
        seconds_of(2, step)
        stock_s = seconds_of(MEASURED_STEPS, step)
        demand = demand_of(make)
        for share in (2, 4, 8):
            _, step = make()
            with torch_lms.session(limit=demand // share) as lms:
                seconds_of(WARM_UP, step)
                lms.reset_stats()
                step_s = seconds_of(MEASURED_STEPS, step)
                stats = lms.stats()
            speeds = stats.link_bytes_per_s
            moved = [stats.evicted_bytes / MEASURED_STEPS, stats.fetched_bytes / MEASURED_STEPS]
            copies_s = moved[0] / speeds["out"] + moved[1] / speeds["in"]
            print(
                f"| {name} | demand/{share} | {' | '.join(map(format_bytes, moved))} | {copies_s / stock_s:.2f} | "
                f"{stats.hidden_fraction:.0%} | {step_s / stock_s:.2f} |",
                flush=True,
            )


@click.command()
@click.option("--hidden", is_flag=True, help="How much of the copies is hidden, measured here.")
def main(hidden: bool) -> None:
    """Print a table of docs/planning.md."""
    os.environ["TORCH_LMS_PLANNING"] = "at-once"  # what counts is what moves once there is a plan
    if hidden:
        print_hidden()
    else:
        print_moved()


if __name__ == "__main__":
    main()
