"""Trials in processes of their own: how they went, however they ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from typing import Any

from torch_lms.bench.ranks import Fields, joined
from torch_lms.bench.samples import Reading, Sampler
from torch_lms.bench.trial import COMPLETED, CRASHED, OUT_OF_MEMORY, Asked
from torch_lms.bench.ways import OURS

_CHILD = "torch_lms.bench.child.main"
_MEMORY_WORDS = ("bad_alloc", "allocate memory", "out of memory", "MemoryError")
_MAX_TEXT = 600
_FAREWELL_S = 5.0

_LOST_S = 1.0
"""In which a rank that was killed is heard of, once another has lost its connection."""

OnStep = Callable[[], object]

Heard = SimpleQueue[tuple[int, dict[str, Any] | None]]


class Rank:
    """A process of a trial. It waits for its turn before each step that counts.

    Args:
        asked: what to do.
        heard: is given the rank and an event, for each that the process tells; None in its place once it has ended.
    """

    def __init__(self, asked: Asked, heard: Heard) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._child = subprocess.Popen(
            [sys.executable, "-m", _CHILD, json.dumps(asdict(asked))],
            stdin=subprocess.PIPE,  # held open: the child ends when it closes
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=_environment(asked),
        )
        self.pid = self._child.pid
        self._reader = threading.Thread(target=self._read, args=(asked.rank, heard), daemon=True)
        self._reader.start()

    def take_turn(self) -> None:
        """Have it take a step."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: its output says how
            self._child.stdin.write("+")
            self._child.stdin.flush()

    def end_without_word(self) -> Fields:
        """How it ended, as it did not say itself."""
        exit_code = self._child.wait()
        self._errors.seek(0)
        return _unreported(exit_code, self._errors.read())

    def close(self) -> None:
        """Let go of everything, whether it has ended or not."""
        self._child.kill()
        self._child.wait()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        self._reader.join(_FAREWELL_S)
        if not self._reader.is_alive():  # else what the target has started still holds the other end
            self._child.stdout.close()
        self._errors.close()

    def _read(self, rank: int, heard: Heard) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith('{"event"'):  # else the target itself prints
                heard.put((rank, json.loads(line)))
        heard.put((rank, None))


class Job:
    """The processes that make one trial: one for each rank. The first that fails ends it.

    Args:
        asked: what to do.
        gpu: see ``Sampler``.
    """

    def __init__(self, asked: Asked, gpu: Callable[[], Reading] | None) -> None:
        count = asked.setting.gpus
        self._steps_left = asked.steps
        self._folder = tempfile.TemporaryDirectory(prefix="torch-lms-bench-")
        self._heard: Heard = SimpleQueue()
        meeting = os.path.join(self._folder.name, "ranks")
        self._ranks = [Rank(replace(asked, rank=rank, meeting=meeting), self._heard) for rank in range(count)]
        self._sampler = Sampler([rank.pid for rank in self._ranks], gpu)
        self._ends: dict[int, Fields] = {}
        self._failure: Fields | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether there are steps left to take."""
        return self._failure is None and self._steps_left > 0

    def warm_up(self, on_step: OnStep) -> None:
        """Wait until the steps begin that count, or it has failed; ``on_step`` is called after each step."""
        self._hear("counting", on_step)
        self._sampler.counts_now()
        self._sampler.sleep()

    def step(self, on_step: OnStep) -> None:
        """Have all ranks take a step that counts."""
        self._steps_left -= 1
        self._sampler.wake()
        for rank in self._ranks:
            rank.take_turn()
        self._hear("step", on_step)
        self._sampler.sleep()

    def end(self) -> Fields:
        """How it ended."""
        while self._failure is None and len(self._ends) < len(self._ranks):
            self._hear_one(lambda: None)
        samples = self._sampler.stop()
        told = self._failure or joined([self._ends[rank] for rank in range(len(self._ranks))])
        return {**told, "samples": samples}

    def close(self) -> None:
        """End all processes that are still there, and let go of everything."""
        for rank in self._ranks:
            rank.close()
        self._sampler.stop()
        self._folder.cleanup()

    def _hear(self, awaited: str, on_step: OnStep) -> None:
        """Listen until each rank has told of what is awaited, or one has failed."""
        missing = len(self._ranks)
        while missing and self._failure is None:
            if self._hear_one(on_step) == awaited:
                missing -= 1

    def _hear_one(self, on_step: OnStep) -> str:
        """Listen to one event, and give its name."""
        rank, event = self._heard.get()
        if event is None:
            self._take_end(rank, self._ranks[rank].end_without_word())
            return "end"
        kind: str = event.pop("event")
        if kind == "step" and rank == 0:
            on_step()
        if kind == "end":
            may_have_lost_another = event["outcome"] == CRASHED and len(self._ranks) > 1
            killed = self._killed_rank() if may_have_lost_another else None
            self._take_end(*(killed or (rank, event)))
        return kind

    def _take_end(self, rank: int, told: Fields) -> None:
        """Others fail because the first did: they wait for it, or lose their connection."""
        self._ends[rank] = told
        if told["outcome"] == COMPLETED:
            return
        if len(self._ranks) > 1:
            told["reason"] = f"rank {rank} of {len(self._ranks)}: {told['reason']}"
        self._failure = told

    def _killed_rank(self) -> tuple[int, Fields] | None:
        """The rank that was killed, if one was, and how: another may tell before that it lost the connection."""
        until_s = time.monotonic() + _LOST_S
        while (left_s := until_s - time.monotonic()) > 0:
            with suppress(Empty):
                rank, event = self._heard.get(timeout=left_s)
                if event is None:
                    return rank, self._ranks[rank].end_without_word()
        return None


def perform(asked: Sequence[Asked], on_step: OnStep, gpu: Callable[[], Reading] | None) -> list[Fields]:
    """Make trials side by side: warmed up one after the other, and then a step of each in turn.

    Args:
        asked: what to do.
        on_step: called after each step.
        gpu: see ``Sampler``.
    """
    jobs: list[Job] = []
    try:
        for one in asked:
            job = Job(one, gpu)
            jobs.append(job)
            job.warm_up(on_step)
        while any(job.is_at_work for job in jobs):
            for job in jobs:
                if job.is_at_work:
                    job.step(on_step)
        return [job.end() for job in jobs]
    finally:
        for job in jobs:
            job.close()


def _environment(asked: Asked) -> dict[str, str]:
    """Without LMS no huge pages are asked for, as is PyTorch's default (N19). Ranks are told what torchrun tells."""
    huge_pages = "1" if asked.way in OURS else "0"
    found = {**os.environ, "THP_MEM_ALLOC_ENABLE": huge_pages}
    count = asked.setting.gpus
    if count == 1:
        return found
    rank = str(asked.rank)
    threads = str(max(1, len(os.sched_getaffinity(0)) // count))
    found |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return {"OMP_NUM_THREADS": threads, **found}


def _unreported(exit_code: int, errors: str) -> Fields:
    """A child that ended without a word died in C++, where memory that is refused may end in ``abort``, or by a bug."""
    text = " ".join(errors.split())[-_MAX_TEXT:]
    if exit_code >= 0:
        return {"outcome": CRASHED, "reason": f"the process ended with exit code {exit_code}: {text}"}
    name = signal.Signals(-exit_code).name
    if any(word in errors for word in _MEMORY_WORDS):
        return {"outcome": OUT_OF_MEMORY, "reason": f"the process was ended by {name}: {text}"}
    hint = ", as the kernel does where the machine's memory runs out" if name == "SIGKILL" else ""
    return {"outcome": CRASHED, "reason": f"the process was ended by {name}{hint}: {text}".rstrip(": ")}
