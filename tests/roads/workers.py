"""Processes that judge cases; one that crashes or hangs costs one case.

They are forks of a process that has imported everything and started nothing: a new one costs milliseconds.
"""

import multiprocessing as mp
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import Connection, wait

import torch

import torch_lms
from tests.roads.judge import Call, Case, judge
from tests.roads.observe import error_text
from torch_lms.capture import compiled

_SECONDS_PER_CASE = 60
_SECONDS_BETWEEN_LOOKS = 5
_CHANGING_THE_PROCESS = "set_", "use_deterministic", "autocast_"
"""Functions whose effect outlives the call: the next case gets a process that has not seen it."""
_MAX_FILE_BYTES = 1 << 30
"""A call that writes to freed memory may have LMS extend its spill file until the disk is full, for everybody."""

_fork = mp.get_context("fork")


class _Worker:
    """One process, started anew as needed."""

    def __init__(self, cases: list[Case], folder: str) -> None:
        self._cases, self._folder = cases, folder
        self.number = -1
        self._start()

    def _start(self) -> None:
        ours, theirs = _fork.Pipe()
        self.answers = ours
        self._process = _fork.Process(target=_work, args=(theirs, self._cases, self._folder), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, number: int) -> None:
        """Have the case with this number judged."""
        self.number, self._doing, self._deadline = number, "", time.monotonic() + _SECONDS_PER_CASE
        self.answers.send(number)

    def hear(self) -> list[Call] | None:
        """The verdict, or None if it is still at work."""
        try:
            while self.answers.poll():
                message = self.answers.recv()
                if isinstance(message, str):
                    self._doing = message
                    continue
                calls, is_last = message
                if is_last:
                    self._restart()
                return calls
        except (EOFError, ConnectionError):
            code = self._restart()
            return [self._crash(f"the process ended with {code}")]
        if time.monotonic() > self._deadline:
            self._process.kill()
            self._restart()
            return [self._crash(f"it took more than {_SECONDS_PER_CASE} s")]
        return None

    def _crash(self, how: str) -> Call:
        if self._doing.startswith("LMS"):
            return Call(self._doing.removeprefix("LMS: "), "crashed", how)
        return Call("", "crashed", f"on stock: {how}")

    def _restart(self) -> int | None:
        self._process.join()
        code = self._process.exitcode
        self.answers.close()
        self._start()
        return code

    def close(self) -> None:
        """End it. That our end is closed it would not notice: its siblings inherited a copy."""
        self.answers.send(None)
        self._process.join()
        self.answers.close()


def verdicts(cases: list[Case], workers: int) -> Iterator[tuple[Case, list[Call]]]:
    """Of ``cases``, as they come."""
    _import_all()
    with tempfile.TemporaryDirectory() as folder:
        yield from _dealt(cases, workers, folder)


def _dealt(cases: list[Case], workers: int, folder: str) -> Iterator[tuple[Case, list[Call]]]:
    """All cases of a road go to one worker, which looks for ways to call it only once."""
    roads = {road: number for number, road in enumerate(dict.fromkeys(case.road for case in cases))}
    waiting: dict[_Worker, Iterator[int]] = {}
    for share in range(workers):
        its = iter([number for number, case in enumerate(cases) if roads[case.road] % workers == share])
        _begin_next(_Worker(cases, folder), its, waiting)
    while waiting:
        wait([worker.answers for worker in waiting], timeout=1.0)
        for worker, its in list(waiting.items()):
            calls = worker.hear()
            if calls is not None:
                yield cases[worker.number], calls
                _begin_next(worker, its, waiting)


def _begin_next(worker: _Worker, its: Iterator[int], waiting: dict[_Worker, Iterator[int]]) -> None:
    """Have ``worker`` begin the next of its cases; it ends after the last."""
    number = next(its, None)
    if number is None:
        waiting.pop(worker, None)
        worker.close()
    else:
        waiting[worker] = its
        worker.begin(number)


def _import_all() -> None:
    """Whatever PyTorch imports when it is first needed: else every new worker does, in two seconds."""
    import_module("torch._dynamo")
    with torch.device("meta"):
        torch.ones(2, 2).matmul(torch.ones(2, 2)).sum()


def _work(answers: Connection, cases: list[Case], folder: str) -> None:
    os.chdir(folder)  # some roads write files, named as the patterns say
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    quiet()
    parent = os.getppid()
    while True:
        while not answers.poll(_SECONDS_BETWEEN_LOOKS):
            if os.getppid() != parent:
                os._exit(1)
        number = answers.recv()
        if number is None:
            os._exit(0)
        case = cases[number]
        try:
            calls = judge(case, answers.send)
        except Exception as error:  # what a call leaves may be beyond what can be looked at
            calls = [Call("", "crashed", f"the sweep itself: {error_text(error)}")]
        is_changed = case.road.family == "torch" and case.road.name.startswith(_CHANGING_THE_PROCESS)
        may_be_damaged = any(call.verdict == "differs" for call in calls)  # as after writes to freed memory
        is_last = is_changed or may_be_damaged or torch_lms.is_enabled()
        answers.send((calls, is_last))
        if is_last:
            os._exit(0)


def quiet() -> None:
    """Nothing that a road prints or warns of is shown; sessions begin at once."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    compiled._keep_dynamo_out = lambda: None  # nothing here is compiled, and it takes 70 ms a session
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
