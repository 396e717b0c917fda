"""Trials in processes of their own: how they went, however they ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from torch_lms.bench.samples import Reading, Sampler
from torch_lms.bench.trial import CRASHED, OUT_OF_MEMORY, Asked
from torch_lms.bench.ways import OURS

_CHILD = "torch_lms.bench.child.main"
_MEMORY_WORDS = ("bad_alloc", "allocate memory", "out of memory", "MemoryError")
_MAX_TEXT = 600

OnStep = Callable[[], object]


class Process:
    """A process that makes one trial. It waits for its turn before each step that counts.

    Args:
        asked: what to do.
        gpu: see ``Sampler``.
    """

    def __init__(self, asked: Asked, gpu: Callable[[], Reading] | None) -> None:
        self._steps_left = asked.steps
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._child = subprocess.Popen(
            [sys.executable, "-m", _CHILD, json.dumps(asdict(asked))],
            stdin=subprocess.PIPE,  # held open: the child ends when it closes
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=_environment(asked.way),
        )
        self._sampler = Sampler(self._child.pid, gpu)
        self._told: dict[str, Any] | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether there are steps left to take."""
        return self._told is None and self._steps_left > 0

    def warm_up(self, on_step: OnStep) -> None:
        """Wait until the steps begin that count, or it has ended; ``on_step`` is called after each step."""
        self._hear("counting", on_step)
        self._sampler.counts_now()
        self._sampler.sleep()

    def step(self, on_step: OnStep) -> None:
        """Have it take a step that counts."""
        assert self._child.stdin is not None
        self._steps_left -= 1
        self._sampler.wake()
        with suppress(BrokenPipeError):  # it has ended: its output says how
            self._child.stdin.write("+")
            self._child.stdin.flush()
        self._hear("step", on_step)
        self._sampler.sleep()

    def end(self) -> dict[str, Any]:
        """How it ended: the fields of ``Trial`` that only the process knows."""
        if self._told is None:
            self._hear("end", lambda: None)
        exit_code = self._child.wait()
        samples = self._sampler.stop()
        self._errors.seek(0)
        told = self._told or _unreported(exit_code, self._errors.read())
        return {**told, "samples": samples}

    def close(self) -> None:
        """Let go of everything, whether it has ended or not."""
        self._child.kill()
        self._child.wait()
        self._sampler.stop()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.stdout.close()
        self._errors.close()

    def _hear(self, awaited: str, on_step: OnStep) -> None:
        """Read events up to the one that is awaited, or to the last."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if not line.startswith('{"event"'):
                continue  # the target itself prints
            event = json.loads(line)
            kind = event.pop("event")
            if kind == "step":
                on_step()
            if kind == "end":
                self._told = event
            if kind in (awaited, "end"):
                return


def perform(asked: Sequence[Asked], on_step: OnStep, gpu: Callable[[], Reading] | None) -> list[dict[str, Any]]:
    """Make trials side by side: warmed up one after the other, and then a step of each in turn.

    Args:
        asked: what to do.
        on_step: called after each step.
        gpu: see ``Sampler``.
    """
    processes: list[Process] = []
    try:
        for one in asked:
            process = Process(one, gpu)
            processes.append(process)
            process.warm_up(on_step)
        while any(process.is_at_work for process in processes):
            for process in processes:
                if process.is_at_work:
                    process.step(on_step)
        return [process.end() for process in processes]
    finally:
        for process in processes:
            process.close()


def _environment(way: str) -> dict[str, str]:
    """Without LMS no huge pages are asked for, as is PyTorch's default (N19)."""
    huge_pages = "1" if way in OURS else "0"
    return {**os.environ, "THP_MEM_ALLOC_ENABLE": huge_pages}


def _unreported(exit_code: int, errors: str) -> dict[str, Any]:
    """A child that ended without a word died in C++, where memory that is refused may end in ``abort``, or by a bug."""
    text = " ".join(errors.split())[-_MAX_TEXT:]
    if exit_code >= 0:
        return {"outcome": CRASHED, "reason": f"the process ended with exit code {exit_code}: {text}"}
    name = signal.Signals(-exit_code).name
    if any(word in errors for word in _MEMORY_WORDS):
        return {"outcome": OUT_OF_MEMORY, "reason": f"the process was ended by {name}: {text}"}
    hint = ", as the kernel does where the machine's memory runs out" if name == "SIGKILL" else ""
    return {"outcome": CRASHED, "reason": f"the process was ended by {name}{hint}: {text}".rstrip(": ")}
