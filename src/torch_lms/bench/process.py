"""One trial in a process of its own: how it went, however it ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import IO, Any

from torch_lms.bench.samples import Reading, Sampler
from torch_lms.bench.trial import CRASHED, OUT_OF_MEMORY, Asked
from torch_lms.bench.ways import OURS

_CHILD = "torch_lms.bench.child.main"
_MEMORY_WORDS = ("bad_alloc", "allocate memory", "out of memory", "MemoryError")
_MOST_TEXT = 600

OnStep = Callable[[], object]


def perform(asked: Asked, on_step: OnStep, gpu: Callable[[], Reading] | None) -> dict[str, Any]:
    """Run a trial; gives the fields of ``Trial`` that only the process knows.

    Args:
        asked: what to do.
        on_step: called after each step.
        gpu: see ``Sampler``.
    """
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", _CHILD, json.dumps(asdict(asked))],
            stdin=subprocess.PIPE,  # held open: the child ends when it closes
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(asked.way),
        )
        sampler = Sampler(child.pid, gpu)
        try:
            found = _outcome(child, sampler, on_step)
            exit_code = child.wait()
        finally:
            child.kill()  # needed after an interrupt; does nothing to a child that has ended
            child.wait()
            samples = sampler.stop()
        errors.seek(0)
        if found is None:
            found = _unreported(exit_code, errors.read())
    return {**found, "samples": samples}


def _environment(way: str) -> dict[str, str]:
    """Without LMS no huge pages are asked for, as is PyTorch's default (N19)."""
    huge_pages = "1" if way in OURS else "0"
    return {**os.environ, "THP_MEM_ALLOC_ENABLE": huge_pages}


def _outcome(child: "subprocess.Popen[str]", sampler: Sampler, on_step: OnStep) -> dict[str, Any] | None:
    """What the child tells of its end; None if it tells nothing."""
    assert child.stdout is not None
    found = None
    for event in _events(child.stdout):
        kind = event.pop("event")
        if kind == "step":
            on_step()
        elif kind == "counting":
            sampler.counts_now()
        elif kind == "end":
            found = event
    return found


def _events(lines: IO[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith('{"event"'):
            yield json.loads(line)


def _unreported(exit_code: int, errors: str) -> dict[str, Any]:
    """A child that ended without a word died in C++, where memory that is refused may end in ``abort``, or by a bug."""
    text = " ".join(errors.split())[-_MOST_TEXT:]
    if exit_code >= 0:
        return {"outcome": CRASHED, "reason": f"the process ended with exit code {exit_code}: {text}"}
    name = signal.Signals(-exit_code).name
    if any(word in errors for word in _MEMORY_WORDS):
        return {"outcome": OUT_OF_MEMORY, "reason": f"the process was ended by {name}: {text}"}
    hint = ", as the kernel does where the machine's memory runs out" if name == "SIGKILL" else ""
    return {"outcome": CRASHED, "reason": f"the process was ended by {name}{hint}: {text}".rstrip(": ")}
