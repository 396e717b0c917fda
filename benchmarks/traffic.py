"""How many bytes planned steps move out, beside the least that any schedule must.

python benchmarks/traffic.py                # some minutes; prints a table of docs/planning.md, the same on any machine
python benchmarks/traffic.py --recompute    # larger steps, with recomputation: what is recomputed depends on how fast
                                            # the machine's link is, and its operations
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import click
import torch
from nets import DeepLab, UNet3d, encoder, resnet
from torch import nn

import torch_lms
from torch_lms.demo.train import UNet
from torch_lms.engine import Speeds
from torch_lms.planner import floor_bytes, make_plan, optimum_bytes
from torch_lms.policy import Plan
from torch_lms.runtime import api
from torch_lms.runtime.cpu import CpuExecutor
from torch_lms.runtime.stats import Stats
from torch_lms.trace import Trace
from torch_lms.units import format_bytes

MIN_SIZE = 4096
WARM_UP = 4
"""Steps until one follows a plan: the optimizer makes its state, a whole step is seen, and what lives on is known."""

STEPS = 4
BYTES_PER_S = 1e9
SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=1e-3)

Step = Callable[[], torch.Tensor]


def training(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    optimizer: Callable[..., torch.optim.Optimizer] = SGD,
    accumulate: int = 1,
) -> tuple[nn.Module, Step]:
    """A model, and a function that takes a step with ``accumulate`` batches of ``shape`` and gives the last loss."""
    torch.manual_seed(0)
    model = make()
    update = optimizer(model.parameters())

    def step() -> torch.Tensor:
        update.zero_grad()
        for _ in range(accumulate):
            loss: torch.Tensor = model(torch.randn(shape)).square().mean()
            loss.backward()
        update.step()
        return loss.detach()

    return model, step


NETS: dict[str, Callable[[], tuple[nn.Module, Step]]] = {
    "the demo's U-Net, 32^3": partial(training, partial(UNet, 3, (4, 8, 16)), (1, 1, 32, 32, 32)),
    "ResNet-50, 2 x 64^2": partial(training, partial(resnet, 50), (2, 3, 64, 64)),
    "DeepLab over ResNet-18, 2 x 65^2": partial(training, partial(DeepLab, 18), (2, 3, 65, 65)),
    "3D U-Net, 24^3, 4 micro-batches": partial(training, partial(UNet3d, 4), (1, 1, 24, 24, 24), accumulate=4),
    "transformer encoder with Adam": partial(training, partial(encoder, 3, 64), (8, 64, 64), ADAM),
}


LARGE: dict[str, Callable[[], tuple[nn.Module, Step]]] = {
    "the demo's U-Net, 64^3": partial(training, partial(UNet, 3, (4, 8, 16)), (1, 1, 64, 64, 64)),
    "ResNet-50, 1 x 384^2": partial(training, partial(resnet, 50), (1, 3, 384, 384)),
    "DeepLab over ResNet-18, 1 x 385^2": partial(training, partial(DeepLab, 18), (1, 3, 385, 385)),
    "transformer encoder with Adam": partial(training, partial(encoder, 3, 256), (16, 128, 256), ADAM),
}
"""Whose activations outweigh their parameters, as those of large images do."""


@contextmanager
def fixed_speeds() -> Iterator[None]:
    """Plans are made as if memory and link had the speed ``BYTES_PER_S``, and whatever was started is over at the next
    operation: the table is the same on any machine, busy or not.
    """

    def plan(trace: Trace, limit: int, ids: Mapping[int, int], _: Speeds) -> Plan:
        ops = []
        for op in trace.ops:
            nbytes = sum(trace.pages[number].nbytes for number in {*op.pages, *op.creates})
            ops.append(op._replace(seconds=nbytes / BYTES_PER_S))
        return make_plan(Trace(trace.pages, tuple(ops)), limit, ids, Speeds(BYTES_PER_S, BYTES_PER_S))

    def landed(executor: CpuExecutor) -> list[int]:
        return list(executor._under_way)  # whoever asks waits for them

    with (
        mock.patch("torch_lms.planner.makers.make_plan", plan),
        mock.patch.object(CpuExecutor, "landed", landed),
        mock.patch.object(api, "NativeCpuExecutor", lambda disk, _: CpuExecutor(disk)),
    ):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Small operations are slower on more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def demand_of(make: Callable[[], tuple[nn.Module, Step]]) -> int:
    """Bytes that a step holds at most."""
    _, step = make()
    with torch_lms.session(limit="64GB", min_size=MIN_SIZE) as lms:
        for _ in range(2):
            step()
        return lms.stats().demand_bytes


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one net under one limit: what happened in ``STEPS`` steps, and one of them.

    Attributes:
        stats: of all.
        limit: bytes.
        trace: of the last step; None if it followed no plan.
        floor: the least bytes that such a step can evict; 0 if it followed no plan.
    """

    stats: Stats
    limit: int
    trace: Trace | None
    floor: float

    @property
    def working_set_bytes(self) -> int:
        """Of the largest operation."""
        assert self.trace is not None
        return self.trace.working_set_bytes

    @property
    def optimum(self) -> float:
        """The floor for whole pages. It takes long for long steps."""
        assert self.trace is not None
        return optimum_bytes(self.trace, self.limit)

    @property
    def ratio(self) -> float:
        """Bytes moved out over the floor."""
        return self.stats.evicted_bytes / (self.floor * STEPS)


def measure(
    make: Callable[[], tuple[nn.Module, Step]], limit: int, policy: str = "planned", recompute: bool = False
) -> Traffic:
    """Train under ``limit`` bytes, and count once plans are followed."""
    _, step = make()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE, policy=policy, recompute=recompute) as lms:
        for _ in range(WARM_UP):
            step()
        lms.reset_stats()
        for _ in range(STEPS):
            step()
        lms.validate()
        is_planned = policy == "planned"
        stats = lms.stats(floor=is_planned)
        trace = lms.trace() if is_planned else None
        return Traffic(stats, limit, trace, floor_bytes(trace, limit) if trace is not None else 0.0)


def print_recomputed() -> None:
    """The table with recomputation. On all cores: what is recomputed depends on whether one is left for copies."""
    print("| step | limit | floor | evicted | evicted, with recomputation | of the floor | recomputed |")
    print("|---|---|---|---|---|---|---|")
    for name, make in LARGE.items():
        for share in (2, 4):
            limit = demand_of(make) // share
            moved, both = measure(make, limit), measure(make, limit, recompute=True)
            evicted = [format_bytes(traffic.stats.evicted_bytes / STEPS) for traffic in (moved, both)]
            print(
                f"| {name} | demand/{share} | {format_bytes(both.floor)} | {' | '.join(evicted)} | "
                f"{both.ratio:.2f} | {format_bytes(both.stats.recomputed_bytes / STEPS)} |",
                flush=True,
            )


def print_moved() -> None:
    """The table without."""
    print("| step | limit | limit / W | floor | planned | ratio | reactive |")
    print("|---|---|---|---|---|---|---|")
    for name, make in NETS.items():
        for share in (2, 4):
            limit = demand_of(make) // share
            planned, reactive = measure(make, limit), measure(make, limit, "reactive")
            figures = (planned.floor, planned.stats.evicted_bytes / STEPS)
            print(
                f"| {name} | demand/{share} | {limit / planned.working_set_bytes:.2f} | "
                f"{' | '.join(map(format_bytes, figures))} | {planned.ratio:.3f} | "
                f"{format_bytes(reactive.stats.evicted_bytes / STEPS)} |",
                flush=True,
            )


@click.command()
@click.option("--recompute", is_flag=True, help="What is moved if pages may be recomputed instead.")
def main(recompute: bool) -> None:
    """Print a table of docs/planning.md."""
    os.environ["TORCH_LMS_PLANNING"] = "at-once"  # what counts is what moves once there is a plan
    if recompute:
        print_recomputed()
    else:
        with one_thread(), fixed_speeds():
            print_moved()


if __name__ == "__main__":
    main()
