"""How much of the package one operation crosses, by what happens to pages in the meantime, as a table.

    python -m tests.journey
    python -m tests.journey --show EVENT [--policy reactive]

A small CNN trains on the CPU: once with room for everything, then at half its demand. A narrow one trains at half its
demand on a disk that is made slow, so that recomputing is cheaper. Both are done reactively and by plan.

A mode above that of the session watches each operation. It counts the calls of Python functions whose file is in
``src/torch_lms``, by ``sys.setprofile``. A generator that is resumed counts as a call: whoever reads along has to go
there again.

What happened is read from what the executor was asked to do meanwhile. To ask ``torch_lms.stats()`` would have Python
bring the books up to date after each operation, which no program does. Copies that other threads make are not counted.
Planned moves are performed in Python, as those of an accelerator are: on a CPU the native interposer needs none.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from types import FrameType
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lms
from tests.injection import disk_calls, moves_in_python

SOURCES = str(Path(torch_lms.__file__).parent) + os.sep
POLICIES = ("reactive", "planned")
MIN_SIZE = 4096
SHAPE = (4, 3, 64, 64)
WARM_UP = 5
"""Steps until one follows a plan."""

STEPS = 4
WIDE = (32, 64, 128, 256, 512)
"""The widths of a network's blocks. Weights and activations both matter, since every other block halves the images."""

NARROW = (8, 8, 8, 8, 8)
"""Activations alone matter, and many of them fit into half the demand: there recomputing is worth most."""

SLOW_DISK_BYTES_PER_S = 20e6
"""Moving a page takes about a hundred times as long as recomputing it."""


class Reviewed(NamedTuple):
    """What the review of November 2026 found for an event, at commit dd42d70 and on a CNN that it does not name."""

    calls: str
    files: str
    switches: str


EVENTS: dict[str, Reviewed] = {
    "born, all fits": Reviewed("-", "-", "-"),
    "born": Reviewed("117-189", "18-20", "70-109"),
    "evicted": Reviewed("260-360", "26-28", "-"),
    "fetched": Reviewed("-", "-", "-"),
    "fetched and evicted": Reviewed("about 470", "27", "225"),
    "recomputed": Reviewed("-", "30", "-"),
}
"""What may happen during an operation. "born" means that its result is a new page, and that nothing was moved."""


EXECUTORS = ("runtime/cpu.py", "runtime/native_cpu.py")
RECOMPUTING = ("runtime/executor.py", "runtime/recompute.py")
MOVES = {"start_evict", "finish_evict", "release", "start_fetch", "finish_fetch", "discard"}
"""What an executor is asked to do. Of a page that leaves, "start_evict" is asked first, and "release" last."""


class Call(NamedTuple):
    """A function of the package was entered (or a generator resumed), below ``depth`` others of the package."""

    file: str
    function: str
    depth: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that was watched.

    Attributes:
        name: of the operator.
        calls: of functions of the package, in order.
        creates: whether its result is a new page.
        has_room: whether there was room for everything in its step.
    """

    name: str
    calls: tuple[Call, ...]
    creates: bool
    has_room: bool

    @property
    def files(self) -> int:
        """How many files the calls are in."""
        return len({call.file for call in self.calls})

    @property
    def switches(self) -> int:
        """How often a call is in another file than the call before."""
        return sum(one.file != other.file for one, other in pairwise(self.calls))

    @property
    def event(self) -> str | None:
        """What happened during it; None where that is no single event of ``EVENTS``."""
        if self.has_room:
            return "born, all fits" if self.creates else None
        asked = {call.function.rpartition(".")[2] for call in self.calls if call.file in EXECUTORS}
        if "recompute" in {call.function.rpartition(".")[2] for call in self.calls if call.file in RECOMPUTING}:
            return "recomputed"
        if "start_fetch" in asked:
            return "fetched and evicted" if "release" in asked else "fetched"
        if "release" in asked:
            return "evicted"
        return "born" if self.creates and not asked & MOVES else None


class Watch(TorchDispatchMode):
    """Notes what each operation crosses while ``is_on``.

    Args:
        has_room: whether nothing has to move.
    """

    def __init__(self, has_room: bool) -> None:
        super().__init__()
        self.is_on = False
        self.operations: list[Operation] = []
        self._has_room = has_room

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.is_on:
            return func(*args, **kwargs)
        profile = Profile()
        sys.setprofile(profile)
        try:
            result = func(*args, **kwargs)
        finally:
            sys.setprofile(None)
        creates = _creates_page(result, (*args, *kwargs.values()))
        self.operations.append(Operation(str(func), tuple(profile.calls), creates, self._has_room))
        return result


class Profile:
    """For ``sys.setprofile``: the calls of functions of the package."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if not code.co_filename.startswith(SOURCES):
            return
        if event == "call":
            self.calls.append(Call(code.co_filename.removeprefix(SOURCES), code.co_qualname, self._depth))
            self._depth += 1
        else:
            self._depth -= 1


def network(widths: Sequence[int]) -> nn.Sequential:
    """Three layers for each of ``widths``; wider ones come with smaller images."""
    layers: list[nn.Module] = []
    before = SHAPE[1]
    for number, width in enumerate(widths):
        stride = 2 if number % 2 and width > before else 1
        layers.append(nn.Conv2d(before, width, 3, padding=1, stride=stride))
        layers.append(nn.BatchNorm2d(width))
        layers.append(nn.ReLU())
        before = width
    return nn.Sequential(*layers)


def journeys(policy: str) -> list[Operation]:
    """All operations of some steps, with room for everything and without."""
    operations, demand = _with_room(WIDE, policy)
    with moves_in_python(), torch_lms.session(demand // 2, MIN_SIZE, policy=policy, recompute=False, device="cpu"):
        operations += _train(WIDE, False, STEPS)
    if policy == "planned":
        _, demand = _with_room(NARROW, policy)
        with _slow_disk(), moves_in_python(), torch_lms.session(demand // 2, MIN_SIZE, policy=policy, device="cpu"):
            operations += [found for found in _train(NARROW, False, STEPS) if found.event == "recomputed"]
    return operations


def _with_room(widths: Sequence[int], policy: str) -> tuple[list[Operation], int]:
    """The operations of a step while everything fits, and its demand in bytes."""
    with torch_lms.session("64GB", MIN_SIZE, policy=policy, device="cpu") as lms:
        operations = _train(widths, True, steps=1)
        stats = lms.stats()
    assert stats.evictions == stats.clean_drops == 0, "something was moved though everything fits"
    return operations, stats.demand_bytes


def _train(widths: Sequence[int], has_room: bool, steps: int) -> list[Operation]:
    """Train some steps unwatched, then ``steps`` more: their operations."""
    torch.manual_seed(0)
    model = network(widths)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.randn(SHAPE)
    with Watch(has_room) as watch:
        for number in range(WARM_UP + steps):
            watch.is_on = number >= WARM_UP
            model(images).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch.operations


@contextmanager
def _slow_disk() -> Iterator[None]:
    """Reads and writes of files take as long as on a disk of ``SLOW_DISK_BYTES_PER_S``."""
    write, read = os.pwrite, os.preadv

    def slow_write(*args: Any) -> int:
        count = write(*args)
        time.sleep(count / SLOW_DISK_BYTES_PER_S)
        return count

    def slow_read(*args: Any) -> int:
        count = read(*args)
        time.sleep(count / SLOW_DISK_BYTES_PER_S)
        return count

    with disk_calls("pwrite", slow_write), disk_calls("preadv", slow_read):
        yield


def _creates_page(result: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether ``result`` holds a storage that is a page and no argument's."""
    known = {tensor.untyped_storage()._cdata for tensor in _tensors(arguments)}
    storages = [tensor.untyped_storage() for tensor in _tensors((result,))]
    return any(storage.nbytes() >= MIN_SIZE and storage._cdata not in known for storage in storages)


def _tensors(values: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(tuple(value))


def table(operations: Mapping[str, list[Operation]]) -> Table:
    """A row for each event and policy: quartiles of calls and files, the median of switches, the review's figures."""
    shown = Table(title="What one operation crosses of src/torch_lms")
    for name in ("event", "policy", "operations", "calls", "review", "files", "review", "switches", "review"):
        shown.add_column(name, justify="left" if name in ("event", "policy") else "right")
    for event, reviewed in EVENTS.items():
        for policy, its in operations.items():
            seen = [found for found in its if found.event == event]
            if not seen:
                continue
            calls = _quartiles([len(found.calls) for found in seen])
            files = _quartiles([found.files for found in seen])
            switches = f"{median(found.switches for found in seen):.0f}"
            figures = (calls, reviewed.calls, files, reviewed.files, switches, reviewed.switches)
            shown.add_row(event, policy, str(len(seen)), *figures)
    return shown


def _quartiles(values: list[int]) -> str:
    if len(values) == 1:
        return str(values[0])
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return f"{low:.0f} / {middle:.0f} / {high:.0f}"


def example(operations: list[Operation], event: str) -> Operation | None:
    """The operation of ``event`` with the median number of calls."""
    seen = sorted((found for found in operations if found.event == event), key=lambda found: len(found.calls))
    return seen[len(seen) // 2] if seen else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="EVENT", choices=EVENTS, help="print one operation's calls: %(choices)s")
    parser.add_argument("--policy", choices=POLICIES, default="planned", help="of the operation to show")
    chosen = parser.parse_args()
    os.environ["TORCH_LMS_PLANNING"] = "at-once"  # what counts are the steps once there is a plan
    torch.set_num_threads(1)  # small operations are slower on more
    if chosen.show is None:
        Console(width=132).print(table({policy: journeys(policy) for policy in POLICIES}))
        return 0
    found = example(journeys(chosen.policy), chosen.show)
    if found is None:
        print(f"no operation of this run had the event {chosen.show!r}: try the other --policy", file=sys.stderr)
        return 1
    print(f"{found.name}: {len(found.calls)} calls, {found.files} files, {found.switches} switches")
    for call in found.calls:
        print(f"{'  ' * call.depth}{call.function}  ({call.file})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
