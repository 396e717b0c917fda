"""Where the time of a planned step goes: kernels, copies, the driver, the host.

python benchmarks/step_profile.py gpt 18 --card 12GB    # a minute or two; prints tables, and --json FILE
python benchmarks/step_profile.py unet3d 48 --tiny --device cpu --card 20MB   # does it work at all?

First steps without LMS on the whole device; then, on a card of that size, steps that follow the better plan: how long
each takes, and the host until it has asked for all. Then PyTorch's profiler watches one step, and Python's another.
"""

import cProfile
import io
import json
import pstats
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from peers import way
from rich.console import Console
from rich.table import Table
from small_card_models import MODELS, TINY
from small_card_worker import STEPS, TINY_LIMIT, WARM_UP, act_as_card, be_deterministic, host_limit, training

from torch_lms.units import format_seconds, parse_bytes

_ROWS = 12
"""Of each table at most."""


class Event(NamedTuple):
    """Of the profiler: a kernel, a copy, or a call of the driver. ``lane``: its stream, or its thread."""

    kind: str
    name: str
    lane: Any
    start_us: float
    end_us: float


class Sum(NamedTuple):
    """Seconds, and how many."""

    seconds: float
    count: int


class Profile(NamedTuple):
    """Of one step, as the profiler saw it.

    Attributes:
        kernels, copies, calls: by name. Kernels of all streams; calls of the driver and its runtime on the host.
        span_s: from the beginning of the first kernel on the program's stream to the end of the last.
        idle_s: within, seconds without a kernel.
        in_idle: what the host did meanwhile: seconds in its calls of the driver, by name; the rest it was elsewhere.
    """

    kernels: dict[str, Sum]
    copies: dict[str, Sum]
    calls: dict[str, Sum]
    span_s: float
    idle_s: float
    in_idle: dict[str, float]


_KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cuda_runtime": "call",
    "cuda_driver": "call",
}
"""By the profiler's categories."""


def events_of(trace: dict[str, Any]) -> list[Event]:
    """Those of a trace as the profiler writes it, by when they began."""
    found = []
    for told in trace["traceEvents"]:
        kind = _KINDS.get(told.get("cat", ""))
        if told.get("ph") == "X" and kind is not None:
            lane = told["tid"] if kind == "call" else told.get("args", {}).get("stream", told["tid"])
            found.append(Event(kind, told["name"], lane, told["ts"], told["ts"] + told["dur"]))
    return sorted(found, key=lambda event: event.start_us)


def profile_of(events: list[Event]) -> Profile:
    """What they come to."""
    kernels = [event for event in events if event.kind == "kernel"]
    calls = [event for event in events if event.kind == "call"]
    by_stream: dict[Any, list[Event]] = defaultdict(list)
    for kernel in kernels:
        by_stream[kernel.lane].append(kernel)
    program = max(by_stream.values(), key=len, default=[])
    gaps = list(_gaps(program))
    gaps_end = [ends for _, ends in gaps]
    in_idle: dict[str, float] = defaultdict(float)
    for call in calls:
        for begins, ends in gaps[bisect_right(gaps_end, call.start_us) :]:
            if begins >= call.end_us:
                break
            in_idle[call.name] += (min(ends, call.end_us) - max(begins, call.start_us)) / 1e6
    return Profile(
        _sums(kernels),
        _sums(event for event in events if event.kind == "copy"),
        _sums(calls),
        (max(kernel.end_us for kernel in program) - program[0].start_us) / 1e6 if program else 0.0,
        sum(ends - begins for begins, ends in gaps) / 1e6,
        dict(in_idle),
    )


def _gaps(kernels: list[Event]) -> Iterable[tuple[float, float]]:
    """Between those of one stream: when each began and ended."""
    until = kernels[0].end_us if kernels else 0.0
    for kernel in kernels:
        if kernel.start_us > until:
            yield until, kernel.start_us
        until = max(until, kernel.end_us)


def _sums(events: Iterable[Event]) -> dict[str, Sum]:
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        found[event.name].append((event.end_us - event.start_us) / 1e6)
    return {name: Sum(sum(times), len(times)) for name, times in found.items()}


class Steps:
    """Of one training on a device."""

    def __init__(self, step: Callable[[], torch.Tensor], device: torch.device) -> None:
        self._step = step
        self._device = device

    def wait(self) -> None:
        """Until the device has done all."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)

    def warm_up(self) -> None:
        """Until what follows repeats."""
        for _ in range(WARM_UP):
            self._step()
        self.wait()

    def seconds(self) -> dict[str, float]:
        """Medians: of a step, and of the host's part, until it has asked for all."""
        whole, host = [], []
        for _ in range(STEPS):
            began = time.perf_counter()
            self._step()
            host.append(time.perf_counter() - began)
            self.wait()
            whole.append(time.perf_counter() - began)
        return {"step_s": statistics.median(whole), "host_s": statistics.median(host)}

    def watched(self) -> Profile:
        """One, as PyTorch's profiler sees it."""
        with torch.profiler.profile() as profiler:
            self._step()
            self.wait()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(file))
            return profile_of(events_of(json.loads(file.read_text())))

    def in_python(self) -> str:
        """One, by Python's profiler: the functions that took longest by themselves."""
        profiler = cProfile.Profile()
        profiler.enable()
        self._step()
        profiler.disable()
        self.wait()
        told = io.StringIO()
        pstats.Stats(profiler, stream=told).strip_dirs().sort_stats("tottime").print_stats(_ROWS)
        return told.getvalue().strip()


def show(console: Console, title: str, sums: dict[str, Sum]) -> None:
    """A table of the longest."""
    if not sums:
        return
    table = Table("name", "seconds", "count", title=title)
    for name, its in sorted(sums.items(), key=lambda item: -item[1].seconds)[:_ROWS]:
        table.add_row(name[:80], format_seconds(its.seconds), str(its.count))
    table.add_row("all", format_seconds(sum(its.seconds for its in sums.values())), "")
    console.print(table)


@click.command()
@click.argument("name", type=click.Choice(list(MODELS)))
@click.argument("amount", type=click.IntRange(1))
@click.option("--card", default="12GB", show_default=True, help="Its memory.")
@click.option("--device", "device_name", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="A tiny model; the figures mean nothing.")
@click.option("--json", "json_to", type=click.Path(path_type=Path), help="Write what was found to this file.")
def main(name: str, amount: int, card: str, device_name: str, tiny: bool, json_to: Path | None) -> None:
    """Watch planned steps of a training of AMOUNT samples, or of a volume of that side."""
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    model, device = (TINY if tiny else MODELS)[name], torch.device(device_name)
    be_deterministic(model)
    found: dict[str, Any] = {"model": model.title, "amount": amount, "card": card, "device": str(device)}
    for title in ("without LMS", "planned"):
        steps = Steps(training(model, amount, device, is_checkpointed=False), device)
        limit: int | str = TINY_LIMIT if tiny else "auto"
        if title == "planned" and device.type != "cpu":
            torch.get_device_module(device).empty_cache()
            act_as_card(parse_bytes(card), device)
        elif device.type == "cpu":
            limit = parse_bytes(card)
        around = way("planned", limit, str(device), host_limit()) if title == "planned" else nullcontext(dict)
        with around as tell:
            steps.warm_up()
            seconds, profile, told = steps.seconds(), steps.watched(), steps.in_python()
            known = tell()
        console.print(
            f"{model.title}, {amount}, {title}: a step takes {format_seconds(seconds['step_s'])}, the host "
            f"{format_seconds(seconds['host_s'])} until it has asked for all"
        )
        if title == "planned":
            console.print(f"{known['planned_steps']} of {known['steps']} steps followed a plan")
            if not known["planned_steps"]:
                raise SystemExit("no step followed a plan: take a larger amount, or a smaller card")
        if profile.kernels:
            console.print(
                f"{format_seconds(profile.span_s)} from the first kernel of the program's stream to the last; "
                f"{format_seconds(profile.idle_s)} of that without one"
            )
        else:
            console.print("PyTorch's profiler saw no kernel: only GPUs have them")
        show(console, "kernels", profile.kernels)
        show(console, "copies", profile.copies)
        show(console, "calls of the driver", profile.calls)
        show(console, "the host's calls while no kernel ran", {n: Sum(s, 0) for n, s in profile.in_idle.items()})
        console.print(told)
        found[title] = {
            **seconds,
            **{kind: {n: its._asdict() for n, its in getattr(profile, kind).items()} for kind in profile._fields[:3]},
            "span_s": profile.span_s,
            "idle_s": profile.idle_s,
            "in_idle": profile.in_idle,
        }
        del steps
    if json_to is not None:
        json_to.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
