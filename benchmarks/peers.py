"""LMS beside other ways to train with less memory: the same model, interleaved steps, one process for each way.

python benchmarks/peers.py              # on the CPU half an hour; writes results/peers-<machine>.json model by model
python benchmarks/peers.py --quick      # a minute: does it work at all?
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from nets import Residual, UNet3d, encoder, resnet
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_lms
from torch_lms.bench.child.hooks import DiskHooks
from torch_lms.runtime.probe import probe
from torch_lms.units import format_bytes

FORMAT = 1
RESULTS = Path(__file__).parent / "results"
MIB = 1 << 20
WARM_UP = 5
SETTLED = 20
"""Steps after which a peak is believed."""

NEAR = 0.03
"""Peaks that differ by so little count as equal; processes of one kind differ by as much."""

TRIALS = 4

STEPS = 2
"""At a time, beside the first one, which does not count."""

OURS = ("reactive", "tflms2", "planned")


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained. ``blocks``: the modules that checkpointing runs again."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    blocks: type[nn.Module] | tuple[type[nn.Module], ...]


MODELS = [
    Model("3D U-Net, width 16, 80^3", UNet3d, (1, 1, 80, 80, 80), nn.Sequential),
    Model("ResNet-50, 4 x 224^2", partial(resnet, 50), (4, 3, 224, 224), Residual),
    Model("encoder, 4 layers of 512, 8 x 256", partial(encoder, 4), (8, 256, 512), nn.TransformerEncoderLayer),
]
QUICK = [Model("3D U-Net, width 4, 32^3", partial(UNet3d, 4), (1, 1, 32, 32, 32), nn.Sequential)]


# -- a worker: one way to train, one step for each line that it reads -------------------------------------------------


def checkpointed(model: nn.Module, blocks: Any) -> nn.Module:
    """``model`` with each outermost module of the kind ``blocks`` checkpointed."""
    for child in model.children():
        if isinstance(child, blocks):
            child.forward = partial(checkpoint, child.forward, use_reentrant=False)
        else:
            checkpointed(child, blocks)
    return model


@contextmanager
def way(
    name: str, limit: int | str, device: str, host_limit: int | str = "auto"
) -> Iterator[Callable[[], dict[str, Any]]]:
    """The context in which steps are taken, and what to say about them afterwards."""
    around: AbstractContextManager[Any] = nullcontext()
    tell: Callable[[], dict[str, Any]] = dict
    with ExitStack() as stack:
        if name in OURS:
            os.environ["TORCH_LMS_PLANNING"] = "at-once"  # what counts are the steps once there is a plan
            settings: dict[str, Any] = {"host_limit": host_limit, "policy": name, "device": device}
            lms = stack.enter_context(torch_lms.session(limit, **settings))
            tell = partial(_told, lms)
        elif name == "hooks to disk":
            hooks = DiskHooks()
            around = torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack)
            tell = lambda: {"evicted_bytes": hooks.evicted_bytes}  # noqa: E731
        elif name == "save_on_cpu":
            around = torch.autograd.graph.save_on_cpu(pin_memory=True)
        stack.enter_context(around)
        yield tell


def _told(lms: Any) -> dict[str, Any]:
    reading = lms.reading()
    return {**lms.stats().as_dict(), "plan_step_s": reading and reading.plan_step_s}


def work(model: Model, name: str, limit: int, device: str) -> None:
    """Take a step for each line on standard input; a line with what it took for each step."""
    torch.manual_seed(0)
    net = model.make().to(device)
    if name == "checkpoint":
        checkpointed(net, model.blocks)
    update = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    batch = torch.randn(model.shape, device=device)
    idle = _peak_bytes(device)
    with way(name, limit, device) as tell:
        for _ in sys.stdin:
            began = time.perf_counter()
            update.zero_grad()
            loss = net(batch).square().mean()
            loss.backward()
            update.step()
            if device != "cpu":
                torch.accelerator.synchronize()
            seconds = time.perf_counter() - began
            result = {"seconds": seconds, "loss": loss.item().hex(), "peak_bytes": _peak_bytes(device) - idle}
            print(json.dumps({**result, **tell()}), flush=True)


def _peak_bytes(device: str) -> int:
    if device != "cpu":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


class Worker:
    """The other end."""

    def __init__(self, model: int, quick: bool, name: str, limit: int, device: str) -> None:
        self.name = name
        arguments = ["--worker", name, "--model", str(model), "--limit", str(limit), "--device", device]
        command = [sys.executable, __file__, *arguments, *(["--quick"] if quick else [])]
        huge_pages = "1" if name in OURS else "0"  # without LMS as PyTorch is by itself
        environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": huge_pages}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.last: dict[str, Any] = {}
        self.seconds: list[float] = []
        self.losses: list[str] = []
        self.before: dict[str, Any] = {}

    def step(self, count: bool) -> None:
        """Have it take one; ``count`` it or not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("step", file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}")
        self.last = json.loads(line)
        self.losses.append(self.last["loss"])
        if count:
            self.seconds.append(self.last["seconds"])
        else:
            self.before = self.last

    def warm_up(self, steps: int = WARM_UP) -> dict[str, Any]:
        """Have it take some that do not count; what it says then."""
        for _ in range(steps):
            self.step(count=False)
        return self.last

    def since(self, what: str) -> float:
        """Of a cumulative figure, what came by step while steps were counted, the last time."""
        return float(self.last.get(what, 0) - self.before.get(what, 0)) / STEPS

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# -- the comparison ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One way to train.

    Attributes:
        limit: share of the demand, for LMS.
        ratio: seconds of a step over those of the reference in the same round; median and quartiles.
        peak_bytes: beyond model, optimizer's first state and batch.
        moved_bytes: copied out in a step.
        hidden: share of the copies' time beside the program.
    """

    way: str
    limit: float
    ratio: float
    quartiles: tuple[float, float]
    step_s: float
    peak_bytes: int
    moved_bytes: float
    hidden: float | None
    equal: bool


def compare(number: int, model: Model, quick: bool, device: str, rounds: int) -> list[Row]:
    """All ways to train ``model``."""
    start = partial(Worker, number, quick, device=device)
    probed = start("reactive", 1 << 40)
    demand = int(probed.warm_up()["demand_bytes"])
    probed.close()
    reference, checkpointing = start("reference", 0), start("checkpoint", 0)
    share, like_checkpointing = _with_its_peak(checkpointing, demand, partial(start, "planned"))
    others = [(start("hooks to disk" if device == "cpu" else "save_on_cpu", 0), 0.0)]
    others += [(start(name, int(demand * share)), share) for name in OURS for share in (0.5, 0.25)]
    for worker in (reference, *(worker for worker, _ in others)):
        worker.warm_up()
    ways = [(reference, 0.0), (checkpointing, 0.0), *others, (like_checkpointing, share)]
    for _ in range(rounds):
        for worker, _ in ways:
            worker.step(count=False)  # after the others' steps the caches are cold
            for _ in range(STEPS):
                worker.step(count=True)
    rows = [_row(worker, share, reference) for worker, share in ways]
    for worker, _ in ways:
        worker.close()
    return rows


def _with_its_peak(other: Worker, demand: int, start: Callable[[int], Worker]) -> tuple[float, Worker]:
    """The share of the demand at which LMS has the peak that ``other`` has, and a worker that has it."""
    peak, share = other.warm_up(SETTLED)["peak_bytes"], 0.5
    for trial in range(TRIALS):
        worker = start(int(demand * share))
        above = worker.warm_up(SETTLED)["peak_bytes"] - peak
        if abs(above) <= NEAR * peak or trial == TRIALS - 1:
            break
        worker.close()
        share = min(1.0, max(0.1, share - above / demand))
    return share, worker


def _row(worker: Worker, share: float, reference: Worker) -> Row:
    ratios = [seconds / stock for seconds, stock in zip(worker.seconds, reference.seconds, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    busy = worker.since("evicted_bytes") + worker.since("fetched_bytes")
    return Row(
        way=worker.name,
        limit=share,
        ratio=statistics.median(ratios),
        quartiles=(low, high),
        step_s=statistics.median(worker.seconds),
        peak_bytes=worker.last["peak_bytes"],
        moved_bytes=worker.since("evicted_bytes"),
        hidden=worker.last["hidden_fraction"] if busy and "hidden_fraction" in worker.last else None,
        equal=all(ours == theirs for ours, theirs in zip(worker.losses, reference.losses, strict=False)),
    )


def show(console: Console, model: Model, rows: list[Row]) -> None:
    """A table."""
    columns = ("way", "limit / demand", "step / reference", "seconds", "peak", "out a step", "copies hidden", "equal")
    table = Table(*columns, title=model.name)
    for row in rows:
        table.add_row(
            row.way,
            f"{row.limit:.2f}" if row.limit else "",
            f"{row.ratio:.2f} ({row.quartiles[0]:.2f}-{row.quartiles[1]:.2f})",
            f"{row.step_s:.2f}",
            format_bytes(row.peak_bytes),
            format_bytes(row.moved_bytes) if row.moved_bytes else "",
            "" if row.hidden is None else f"{row.hidden:.0%}",
            "yes" if row.equal else "no",
        )
    console.print(table)


@click.command()
@click.option("--quick", is_flag=True, help="A small model, one round.")
@click.option("--rounds", default=6, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--only", default="", help="Only models whose name contains this.")
@click.option("--worker", default="", hidden=True)
@click.option("--model", "number", default=0, hidden=True)
@click.option("--limit", default=0, hidden=True)
def main(quick: bool, rounds: int, device: str, only: str, worker: str, number: int, limit: int) -> None:
    """Compare LMS with other ways to train in less memory."""
    models = QUICK if quick else MODELS
    if worker:
        work(models[number], worker, limit, device)
        return
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    machine = probe(None, measure=not quick)
    target = RESULTS / f"peers-{device.split(':')[0]}-{machine.processor.cores}-cores.json"
    results: list[dict[str, Any]] = []
    report = {
        "format": FORMAT,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": asdict(machine.processor),
            "accelerators": [asdict(found) for found in machine.accelerators],
            "links": [asdict(link) for link in machine.links],
            "direct_io": machine.spill.direct,
            "block_bytes": MIB,
            "load": os.getloadavg()[0],
        },
        "versions": asdict(machine.versions),
        "rounds": rounds,
        "results": results,
    }
    for number, model in enumerate(models):
        if only in model.name:
            rows = compare(number, model, quick, device, 1 if quick else rounds)
            show(console, model, rows)
            results.append({"model": model.name, "ways": [asdict(row) for row in rows]})
            if not quick:
                target.write_text(json.dumps(report, indent=2) + "\n")
                console.print(f"written to {target}", soft_wrap=True)


if __name__ == "__main__":
    main()
