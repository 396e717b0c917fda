"""One run of one test, in this process."""

import random
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lms
from tests.upstream.digests import Recorder
from tests.upstream.outcome import EMPTY_MODE, PLAIN, Outcome
from tests.upstream.settings import SETTINGS, Setting
from torch_lms.engine import engine
from torch_lms.planner import Speeds, plan

_FOR_PLANS = (
    (engine, "Speeds", lambda *_: Speeds(1e5, 1e5)),  # bytes per second: whatever can be recomputed is
    (plan, "_WALKS", plan._WALKS[:2]),  # any plan will do: a good one of a test's thousand operations takes seconds
    (plan, "_MAX_WALKED", 0),
)


class EmptyMode(TorchDispatchMode):
    """Does nothing. What fails under it fails under any mode."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def run_once(test: unittest.TestCase, way: str, repeats: int, recorder: Recorder) -> Outcome:
    """Run ``test``, its body ``repeats`` times, in one of the ways."""
    outcome, result = Outcome("passed"), unittest.TestResult()
    body = getattr(test, test._testMethodName)
    around = _under_lms(SETTINGS[way], outcome) if way in SETTINGS else _without_lms(way)
    setattr(test, test._testMethodName, _repeated(body, around, repeats, recorder))
    seed()
    recorder.digests = []
    began = time.monotonic()
    unittest.TestSuite([test]).run(result)
    outcome.seconds, outcome.digests = time.monotonic() - began, recorder.digests
    delattr(test, test._testMethodName)  # else a cycle would hold the test
    _conclude(outcome, result)
    return outcome


def warm_up() -> None:
    """Import what the first test and the first session would, which is seconds of a test's time."""
    torch.compiler.set_stance("default")
    with torch_lms.session(limit=0, min_size=1, device="cpu"):
        torch.ones(2).sum()


def seed() -> None:
    """Of every generator that tests draw from."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def _repeated(body: Callable[[], Any], around: Any, repeats: int, recorder: Recorder) -> Callable[[], None]:
    @wraps(body)
    def repeated() -> None:
        with around as end_step:
            recorder.on = True
            try:
                for _ in range(repeats):
                    if repeats > 1:
                        seed()
                    body()
                    if repeats > 1:
                        end_step()
            finally:
                recorder.on = False

    return repeated


@contextmanager
def _without_lms(way: str) -> Iterator[Callable[[], None]]:
    assert way in (PLAIN, EMPTY_MODE), way
    with nullcontext() if way == PLAIN else EmptyMode():
        yield lambda: None


@contextmanager
def _under_lms(setting: Setting, outcome: Outcome) -> Iterator[Callable[[], None]]:
    """What LMS does wrong at the end goes into ``outcome``: an error would please a test that expects to fail."""
    with ExitStack() as stack:
        for target, name, value in _FOR_PLANS:
            stack.enter_context(patch.object(target, name, value))
        lms = stack.enter_context(torch_lms.session(**setting.options()))
        try:
            yield lms.step
        finally:
            stats = lms.stats()
            outcome.evictions, outcome.fetches = stats.evictions, stats.fetches
            outcome.planned_steps, outcome.recomputes = stats.planned_steps, stats.recomputes
            for name, end in (("validate()", lms.validate), ("disable()", stack.close)):
                try:
                    end()
                except Exception as error:
                    outcome.state, outcome.detail = "failed", f"{name} at the end: {_line(error)}"
            outcome.stuck = torch_lms.is_enabled()


def _conclude(outcome: Outcome, result: unittest.TestResult) -> None:
    bad = [*result.errors, *result.failures]
    if outcome.stuck:
        outcome.state, outcome.detail = "failed", outcome.detail or "LMS stays on after the test"
    elif outcome.state == "failed":
        pass
    elif bad:
        outcome.state, outcome.detail = "failed", _error_line(bad[0][1])
    elif result.unexpectedSuccesses:
        outcome.state, outcome.detail = "failed", "succeeds, where a failure is expected"
    elif result.skipped:
        outcome.state, outcome.detail = "skipped", result.skipped[0][1]


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _error_line(traceback: str) -> str:
    """What follows the last frame, in one line."""
    lines = traceback.rstrip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    after = [line.strip() for line in lines[frames[-1] + 1 :] if line.strip() and line[:1] != " "] if frames else lines
    return " ".join(after or lines)[:200]
