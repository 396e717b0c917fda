"""Runs the training script in a process of its own, and gathers the events that it prints."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_lms.demo.report import Outcome, Run

SCRIPT = Path(__file__).with_name("train.py")
_MEMORY_WORDS = ("bad_alloc", "allocate memory", "out of memory", "MemoryError")


@dataclass(frozen=True, slots=True)
class Ready:
    """The child before its training: it has loaded all that it needs, and started torch's threads.

    Attributes:
        idle_rss_bytes: VmHWM right after the import of torch.
        started_rss_bytes: VmHWM now.
        vm_data_bytes: VmData, which the kernel compares with RLIMIT_DATA.
        total_device_bytes: memory of the GPU, if it trains on one.
        threads: how many threads torch uses.
        device_name: the GPU's name; None for the CPU.
        torch: torch's version.
    """

    idle_rss_bytes: int
    started_rss_bytes: int
    vm_data_bytes: int
    total_device_bytes: int | None
    threads: int
    device_name: str | None
    torch: str


def train(arguments: list[str], on_step: Callable[[], object] = lambda: None) -> tuple[Ready | None, Run]:
    """Run the script to its end; ``on_step`` is called after each step. ``Ready`` is None if it did not even start."""
    ready = None
    losses: list[str] = []
    steps_s: list[float] = []
    moved: list[dict[str, float]] = []
    last: dict[str, Any] = {}
    # -P: without it the directory of the script, full of modules of ours, comes before the standard library.
    command = [sys.executable, "-P", str(SCRIPT), *arguments]
    with tempfile.TemporaryFile("w+") as errors, _started(command, errors) as child:
        for event in _events(child):
            match event.pop("event"):
                case "ready":
                    ready = Ready(**event)
                case "step":
                    losses.append(event["loss"])
                    steps_s.append(event["seconds"])
                    moved.append(event.get("moved", {}))
                    on_step()
                case outcome:
                    last = {"outcome": Outcome(outcome), **event}
        exit_code = child.wait()
        errors.seek(0)
        if not last or (exit_code and last["outcome"] is Outcome.COMPLETED):
            last |= _unreported_end(exit_code, errors.read().strip())
    return ready, Run(losses_hex=tuple(losses), steps_s=tuple(steps_s), moved=tuple(moved), **last)


@contextmanager
def _started(command: list[str], errors: Any) -> "Iterator[subprocess.Popen[str]]":
    # The training has all cores, and a planner beside it was not done within the demo: plans are made between steps.
    # Free memory in a thread's own heap counts against RLIMIT_DATA, and no other thread can use it: there is one heap.
    environment = {"TORCH_LMS_PLANNING": "at-once", "MALLOC_ARENA_MAX": "1", **os.environ}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
    )
    with child:
        try:
            yield child
        finally:
            child.kill()  # needed after an interrupt; does nothing to a child that has ended


def _events(child: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith('{"event"'):
            yield json.loads(line)


def _unreported_end(exit_code: int, errors: str) -> dict[str, Any]:
    """The outcome of a child that died without an event.

    It died in C++, where memory that is refused may end in ``abort``, or by a bug.
    """
    if exit_code < 0:
        errors = f"{errors}\n(ended by signal {-exit_code})".lstrip()
        if any(words in errors for words in _MEMORY_WORDS):
            return {"outcome": Outcome.OUT_OF_MEMORY, "message": errors}
    return {"outcome": Outcome.FAILED, "message": errors or f"exit code {exit_code}"}
