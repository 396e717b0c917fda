"""How many bytes planned steps move out where the optimizer's state is most of what there is.

python benchmarks/optimizers.py    # two minutes; prints a table of docs/planning.md, the same on any machine

Twelve square layers, trained by several optimizers. One sweep is all that belongs to the parameters: weights, gradients
and states. The floor is the least that any schedule of the same operations must evict (see traffic.py), the optimum the
least for whole pages.
"""

import os
from collections.abc import Callable
from functools import partial

import torch
from torch import nn, optim
from traffic import STEPS, demand_of, fixed_speeds, measure, one_thread, training

from torch_lms.units import format_bytes

SIDE = 256
LAYERS = 12

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD with momentum, foreach": partial(optim.SGD, lr=0.01, momentum=0.9, foreach=True),
    "Adam": partial(optim.Adam, foreach=False),
    "AdamW": partial(optim.AdamW, foreach=False),
    "AdamW, foreach": partial(optim.AdamW, foreach=True),
    "AdamW, fused": partial(optim.AdamW, fused=True),
    "Adafactor": partial(optim.Adafactor, foreach=False),
    "Muon": optim.Muon,
}


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)))


def sweep_bytes(optimizer: Callable[..., optim.Optimizer]) -> int:
    """Bytes of weights, gradients and states."""
    model = layers()
    update = optimizer(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    update.step()
    states = [value for state in update.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in states) + sum(2 * parameter.nbytes for parameter in model.parameters())


def main() -> None:
    os.environ["TORCH_LMS_PLANNING"] = "at-once"  # what counts is what moves once there is a plan
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


if __name__ == "__main__":
    main()
