"""Random programs on three streams, with LMS and without, as a count of those whose results differ.

    python -m tests.accelerator.fuzz [--programs N] [--first SEED] [--device cuda]

A program repeats one body: it makes tensors on its streams, combines them, writes them in place, copies batches from
page-locked memory, reads on the host, and lets go; one in four leaves out parts of it, others each time. It orders its
streams as CUDA demands, and no more. Under LMS its steps are planned and recompute, or are reactive; tensors go to host
memory, to the disk, or to both; at times the device has less memory than the limit says. Streams do what they are asked
as late as they like. Whatever came of it, no two streams may use the same memory without an order. A real device is
never short of memory here, its streams go at their own pace, and it does not tell of missing orders.

Without LMS every program is run twice, on streams that work at once and on such that do not: if these differ, or miss
an order, it is the program that is wrong.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

import torch_lms
from tests import accelerator
from tests.accelerator import control
from tests.bits import same_bits
from torch_lms.engine import engine
from torch_lms.planner import Speeds

STREAMS = 3
WEIGHTS = 3
STEPS = 6
SIZES = (1024, 4096, 16384)
"""Elements of the tensors of a program; one size for each."""

COUNTS = ("planned_steps", "rejoined_steps", "evictions", "recomputes", "recoveries")

MIN_SIZE = 1024
_SLOW = Speeds(1e6, 1e6)
"""Of the link, as planner sees it: some pages are recomputed, others moved."""


@dataclass
class Held:
    """A tensor of the program.

    Attributes:
        tensor: it.
        home: the stream for which its memory was allocated.
        writer: the stream that wrote it last.
        readers: the streams that read it since.
    """

    tensor: torch.Tensor
    home: int
    writer: int
    readers: set[int] = field(default_factory=set)


class Run:
    """One run of a program: ``body`` draws the same instructions from its seed each time.

    Args:
        seed: of the program.
        device: to run it on.
        end_step: called after each repetition.
    """

    def __init__(self, seed: int, device: torch.device, end_step: Callable[[], None] = lambda: None) -> None:
        self._seed = seed
        self._end_step = end_step
        self._device = device
        module = torch.get_device_module(device)
        self._stream_of = module.stream
        self._streams = [module.current_stream(), *(module.Stream(self._device) for _ in range(STREAMS - 1))]
        self._size = random.Random(seed).choice(SIZES)
        self._orders_late = seed % 2 == 0
        self._leaves_out = seed % 4 == 3
        self._owed: dict[int, set[int]] = {stream: set() for stream in range(STREAMS)}
        control.set_poison_at_free(device, not self._orders_late)
        self._read: list[float] = []

    def results(self) -> list[torch.Tensor]:
        """The weights after all steps, and what the host has read meanwhile."""
        weights = [Held(torch.full((self._size,), 1.0 + n, device=self._device), 0, 0) for n in range(WEIGHTS)]
        for step in range(2 * STEPS if self._leaves_out else STEPS):
            self._body(weights, step)
            self._end_step()
        for weight in weights:
            self._use(0, weight)
        found = [weight.tensor.cpu() for weight in weights]
        for stream in self._streams:  # the next program's may be the same ones
            stream.synchronize()
        return [*found, torch.tensor(self._read, dtype=torch.float64)]

    def _body(self, weights: list[Held], step: int) -> None:
        draw = random.Random(self._seed)
        left_out = random.Random(step).sample(range(45), 5) if self._leaves_out else []
        held: list[Held] = []
        for number in range(draw.randrange(15, 45)):
            if number in left_out:
                continue
            known = [*weights, *held]
            stream = draw.randrange(STREAMS)
            first, second = draw.choice(known), draw.choice(known)
            match draw.choices(("make", "combine", "write", "batch", "read", "free"), (3, 8, 3, 1, 1, 3))[0]:
                case "make":
                    held.append(self._new(stream, (), lambda step=step: self._filled(step)))
                case "combine":
                    held.append(self._new(stream, (first, second), self._combination(draw, first, second)))
                case "write":
                    self._write(stream, first, second)
                case "batch":
                    held.append(self._new(stream, (), lambda step=step: self._batch(step)))
                case "read":
                    self._use(0, first)
                    self._settle(0)
                    self._read.append(float(first.tensor.sum()))
                case "free" if held:
                    self._free(held.pop(draw.randrange(len(held))), tells=draw.random() < 0.5)
        for one in held:
            self._write(0, draw.choice(weights), one)
        while held:
            self._free(held.pop(), tells=draw.random() < 0.5)

    # -- what a program does -------------------------------------------------------------------------------------------

    def _filled(self, step: int) -> torch.Tensor:
        return torch.full((self._size,), 0.5 + step, device=self._device)

    def _batch(self, step: int) -> torch.Tensor:
        """Copied from page-locked memory, which the program lets go of at once."""
        return torch.full((self._size,), 0.25 * step).pin_memory().to(self._device, non_blocking=True)

    @staticmethod
    def _combination(draw: random.Random, first: Held, second: Held) -> Callable[[], torch.Tensor]:
        kinds: tuple[Callable[[], torch.Tensor], ...] = (
            lambda: first.tensor * 0.5 + second.tensor * 0.25,
            lambda: (first.tensor.view(-1, 32) @ second.tensor.view(32, -1)[:, :32]).view(-1).tanh(),
            lambda: torch.relu(first.tensor - second.tensor).sigmoid(),
            lambda: torch.cat([first.tensor[: len(second.tensor) // 2], second.tensor[len(second.tensor) // 2 :]]),
        )
        return draw.choice(kinds)

    def _new(self, stream: int, reads: tuple[Held, ...], make: Callable[[], torch.Tensor]) -> Held:
        for one in reads:
            self._use(stream, one)
        self._settle(stream)
        with self._stream_of(self._streams[stream]):
            return Held(make(), stream, stream)

    def _write(self, stream: int, target: Held, source: Held) -> None:
        self._use(stream, source)
        self._wait_for(stream, {target.writer, *target.readers})
        self._settle(stream)
        with self._stream_of(self._streams[stream]):
            target.tensor.mul_(0.5).add_(source.tensor.tanh())
        target.writer = stream
        target.readers = set() if source is not target else {stream}

    def _use(self, stream: int, one: Held) -> None:
        """``stream`` is about to read it."""
        self._wait_for(stream, {one.writer})
        one.readers.add(stream)

    def _free(self, one: Held, tells: bool) -> None:
        """Let go of it. ``tells``: the allocator is told who else used it; else its home waits for them, in half of the
        programs not before something is allocated there again.
        """
        others = {one.writer, *one.readers} - {one.home}
        if tells:
            for other in others:
                one.tensor.record_stream(self._streams[other])
        elif self._orders_late:
            self._owed[one.home] |= others
        else:
            self._wait_for(one.home, others)

    def _settle(self, stream: int) -> None:
        """Something is about to be allocated for ``stream``."""
        self._wait_for(stream, self._owed[stream])
        self._owed[stream] = set()

    def _wait_for(self, stream: int, others: set[int]) -> None:
        for other in others - {stream}:
            self._streams[stream].wait_stream(self._streams[other])


@dataclass(frozen=True)
class Verdict:
    """Of one program.

    Attributes:
        difference: how its results under LMS differ from those without; "" if they do not.
        planned_steps, rejoined_steps, evictions, recomputes, recoveries: that LMS counted.
    """

    difference: str
    planned_steps: int = 0
    rejoined_steps: int = 0
    evictions: int = 0
    recomputes: int = 0
    recoveries: int = 0


def verdict(seed: int, device: torch.device) -> Verdict:
    """Of program ``seed`` on ``device``.

    Raises:
        AssertionError: they differ without LMS already.
    """
    draw = random.Random(-seed)
    control.watch_races(device)
    control.schedule(device, "eager")
    expected = Run(seed, device).results()
    control.schedule(device, "mixed", seed)
    is_ordered = same_bits(Run(seed, device).results(), expected) and not control.take_races(device)
    assert is_ordered, f"program {seed} does not order its streams"
    control.schedule(device, "eager")
    with torch_lms.session(limit="1GB", min_size=MIN_SIZE, device=device) as lms:
        Run(seed, device, lms.step).results()
        demand = lms.stats().demand_bytes
    settings: dict[str, Any] = {
        "limit": int(demand * draw.choice((0, 0.25, 0.5, 0.75))),
        "policy": draw.choice(("planned", "planned", "reactive")),
        "host_limit": draw.choice(("auto", "auto", 0, demand // 4)),
    }
    room = None
    if draw.random() < 0.25 and control.is_ours(device):  # less than the limit says
        settings["limit"] = demand
        room = int(demand * draw.choice((0.6, 0.8))) + 4 * 4 * max(SIZES)
    control.schedule(device, draw.choice(("delayed", "lazy", "mixed", "mixed")), seed)
    try:
        with control.scarce(device, room), mock.patch.object(engine, "Speeds", return_value=_SLOW):
            with torch_lms.session(min_size=MIN_SIZE, device=device, **settings) as lms:
                results = Run(seed, device, lms.step).results()
                lms.validate()
                stats = lms.stats()
            torch.accelerator.synchronize(device)
    except Exception as error:
        return Verdict(f"{settings}: {type(error).__name__}: {error}")
    finally:
        control.schedule(device, "eager")
    races = control.take_races(device)
    found = [*races, *([] if same_bits(results, expected) else ["other bits"])]
    difference = f"{settings}: {', '.join(found)}" if found else ""
    return Verdict(difference, **{name: getattr(stats, name) for name in COUNTS})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--device", help="default: the test accelerator")
    chosen = parser.parse_args()
    device = torch.device(chosen.device) if chosen.device else accelerator.first_device()
    torch.set_num_threads(1)
    verdicts = []
    for seed in range(chosen.first, chosen.first + chosen.programs):
        verdicts.append(verdict(seed, device))
        if verdicts[-1].difference:
            print(f"program {seed}: {verdicts[-1].difference}", flush=True)
    differ = sum(bool(found.difference) for found in verdicts)
    print(f"{len(verdicts)} programs, {differ} differ; under LMS in all:")
    for name in COUNTS:
        print(f"  {name}: {sum(getattr(found, name) for found in verdicts)}")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
