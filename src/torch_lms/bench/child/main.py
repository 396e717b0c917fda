"""One trial, told as events: a line of JSON each on standard output."""

import json
import os
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

import torch
from torch import nn

from torch_lms.bench.child.around import Around, OurSession, around
from torch_lms.bench.child.build import Built, build
from torch_lms.bench.child.memory import Card, is_out_of_memory
from torch_lms.bench.child.together import any_rank, device_of, join
from torch_lms.bench.trial import COMPLETED, CRASHED, OUT_OF_MEMORY, REFUSED, Asked
from torch_lms.errors import DeviceFullError, LmsError, UnsupportedError, UsageError
from torch_lms.targets import Setting, find

_WARM_UP = 3
_MAX_WARM_UP = 8
"""Steps that do not count: at most so many until one has followed a plan."""

_OF_ALL_STEPS = ("evicted_bytes", "fetched_bytes", "evictions", "recomputes", "wait_s")
"""Figures that are sums over steps."""

_COUNTS = ("evicted_bytes", "fetched_bytes")
"""Of these, what is told in whole numbers."""


class _Turns:
    """A byte on standard input is leave to take a step. When that closes, the parent is gone, and so are we."""

    def __init__(self) -> None:
        self._given: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self) -> None:
        """Wait for one."""
        self._given.get()

    def _read(self) -> None:
        while os.read(0, 1):
            self._given.put(None)
        os._exit(1)


def main() -> None:
    """Do what the first argument asks for."""
    turns = _Turns()
    given = json.loads(sys.argv[1])
    asked = Asked(**{**given, "setting": Setting(**given["setting"])})
    device = device_of(asked)
    torch.backends.cudnn.deterministic = True
    card = Card(device, asked.card_bytes)
    try:
        found = _measured(asked, device, card, turns)
    except Exception as error:
        card.lift()
        found = _failed(error)
    card.lift()
    tell("end", **found)
    turns.wait()  # until the parent ends us: other ranks may still be at their last exchange with this one
    os._exit(0)  # pages of a step that failed need not come back


def tell(event: str, **values: Any) -> None:
    """Print an event for the parent."""
    print(json.dumps({"event": event, **values}), flush=True)


def _measured(asked: Asked, device: torch.device, card: Card, turns: _Turns) -> dict[str, Any]:
    target = find(asked.target)
    _start_torch(device)
    join(asked, device)
    card.insert()
    with around(asked) as way:
        made = build(target, asked, device)
        tell("ready")
        return _steps(made, way, asked, device, card, turns)


def _steps(made: Built, way: Around, asked: Asked, device: torch.device, card: Card, turns: _Turns) -> dict[str, Any]:
    """Take all steps."""
    warm_up: list[float] = []
    losses: list[str] = []
    seen: dict[str, int] = {}
    while len(warm_up) < _WARM_UP or _goes_on(warm_up, way, asked):
        seconds, loss = _step(made, way, device, seen)
        losses.append(loss.hex())
        warm_up.append(seconds)
        tell("step")
    before = way.figures()
    if isinstance(way, OurSession):
        way.count_anew()
    base = way.figures()
    card.reset_peaks()
    seen.clear()
    tell("counting")
    counted: list[float] = []
    for _ in range(asked.steps):
        turns.wait()
        seconds, loss = _step(made, way, device, seen)
        losses.append(loss.hex())
        counted.append(seconds)
        tell("step")
    return {
        "outcome": COMPLETED,
        "steps": asked.steps,
        "step_s": counted,
        "losses": losses,
        "warm_up": {
            "steps": len(warm_up),
            "step_s": warm_up,
            "planning_s": before.get("planning_s"),
            "planned_steps": before.get("planned_steps"),
        },
        **card.peaks(),
        **seen,
        **_by_step(way.figures(), base, asked.steps),
    }


def _goes_on(warm_up: list[float], way: Around, asked: Asked) -> bool:
    """Whether more steps are needed before those that count: all ranks take as many."""
    if len(warm_up) >= _MAX_WARM_UP:
        return False
    is_patient = asked.patience_s is None or sum(warm_up) < asked.patience_s
    return any_rank(is_patient and not way.has_settled())


def _step(made: Built, way: Around, device: torch.device, seen: dict[str, int]) -> tuple[float, float]:
    """Take a step; its seconds, and its loss. ``seen`` holds the most that was in the lower tiers."""
    _settle(device)
    began_s = time.perf_counter()
    asked_s = 0.0
    if made.update is not None:
        made.update.zero_grad()
    with torch.no_grad() if made.update is None else nullcontext():
        loss = made.forward()
    asked_s += _see(way, seen)
    if made.update is not None:
        loss.backward()
        made.update.step()
    value = float(loss.detach())
    _settle(device)
    seconds = time.perf_counter() - began_s - asked_s
    del loss
    _see(way, seen)
    return seconds, value


def _see(way: Around, seen: dict[str, int]) -> float:
    """Take note of the lower tiers; gives the seconds that it took."""
    began_s = time.perf_counter()
    for name, nbytes in way.tiers().items():
        seen[name] = max(seen.get(name, 0), nbytes)
    return time.perf_counter() - began_s


def _by_step(figures: dict[str, Any], base: dict[str, Any], steps: int) -> dict[str, Any]:
    found = {name: value for name, value in figures.items() if name not in ("planning_s", "planned_steps")}
    for name in _OF_ALL_STEPS:
        if name in found:
            mean = (found[name] - base.get(name, 0)) / steps
            found[name] = round(mean) if name in _COUNTS else mean
    return found


def _settle(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def _start_torch(device: torch.device) -> None:
    """Take a step on next to nothing: it starts PyTorch's threads, and loads what comes with an optimizer."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)).to(device)
    model(torch.rand(2, 3, 8, 8, device=device)).sum().backward()
    torch.optim.SGD(model.parameters(), 1.0).step()


def _failed(error: Exception) -> dict[str, Any]:
    if isinstance(error, DeviceFullError) and isinstance(error.__context__, Exception):
        error = error.__context__  # after an error inside, the session cannot end either
    text = " ".join(str(error).split())[:400]
    reason = f"{type(error).__name__}: {text}"
    if is_out_of_memory(error):
        return {"outcome": OUT_OF_MEMORY, "reason": reason}
    if isinstance(error, UsageError | UnsupportedError):
        return {"outcome": REFUSED, "reason": text}
    if isinstance(error, LmsError):
        return {"outcome": CRASHED, "reason": reason}
    traceback.print_exception(error)
    return {"outcome": CRASHED, "reason": reason}


if __name__ == "__main__":
    main()
