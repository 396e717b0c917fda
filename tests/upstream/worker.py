"""The child process: imports one test file, and runs its tests one by one as it is told.

Answers are JSON lines on what was standard output. The tests' own output goes to standard error.
"""

import ctypes
import json
import os
import signal
import sys
import unittest
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TextIO

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """``worker FOLDER FILE``, with questions ``[test, way, repeats]`` on standard input."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    _end_with_parent()
    questions, answers = _take_streams()
    file = folder / "test" / f"{name}.py"
    sys.argv = [str(file)]  # tests look there for the running script
    sys.path[:0] = [str(file.parent), str(folder / "test")]

    import torch

    from tests.upstream.absent import fill_in
    from tests.upstream.digests import Recorder
    from tests.upstream.running import run_once, warm_up

    torch.set_num_threads(1)
    recorder = Recorder()
    recorder.install()
    absent = fill_in(file)
    tests = _tests(name)
    warm_up()
    print(json.dumps({"tests": list(tests), "absent": absent}), file=answers, flush=True)
    for line in questions:
        test, way, repeats = json.loads(line)
        case, method = tests[test]
        print(json.dumps(asdict(run_once(case(method), way, repeats, recorder))), file=answers, flush=True)


def _end_with_parent() -> None:
    """Also while a test hangs."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")


def _take_streams() -> tuple[TextIO, TextIO]:
    """Tests may read and write the standard streams."""
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return questions, answers


def _tests(name: str) -> dict[str, tuple[type[unittest.TestCase], str]]:
    module = import_module(Path(name).name)
    found = {}
    for test in _flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
        if isinstance(test, unittest.loader._FailedTest):
            raise test._exception
        found[f"{type(test).__qualname__}.{test._testMethodName}"] = (type(test), test._testMethodName)
    return found


def _flat(tests: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    if isinstance(tests, unittest.TestCase):
        yield tests
    else:
        for test in tests:
            yield from _flat(test)


if __name__ == "__main__":
    main()
