"""`torch-lms plan --max` has one answer, wherever its search begins: workloads, machines and starts, as a table.

    python -m tests.plan_starts [--what batch] [--workload NAME] [--machine NAME] [--starts N]

Exits with 1 unless all starts give answers within a hundredth of each other, none less with LMS than without, and the
forecast of each says that it fits. Each step is traced and simulated once, whichever search asks for it.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

from torch_lms.answers import Question, largest, question, step
from torch_lms.machine import Calibration, Machine, calibration_for, load
from torch_lms.targets import Setting, Target, find
from torch_lms.trace import Trace

WORKLOADS = {"deeplabv3plus": 2, "googlenet": 8, "gpt": 1, "gscnn": 2, "resnet50": 1, "unet3d": 1}
"""And the batch with which the largest size is looked for."""

MACHINES = ("ac922-v100-32gb", "rtx4090-24gb", "h200-141gb-pcie5")
TIMES = (1.0, 0.01, 100.0, 0.13, 1.01, 10.7, 0.5, 3.3, 31.0, 0.25)
"""The workload's own size or batch, to begin with: some are refused."""

CLOSE = 1.01


class Row(NamedTuple):
    """What one workload on one machine was told from each start: (without, with LMS)."""

    workload: str
    machine: str
    answers: dict[int, tuple[int, int]]
    fits: bool

    @property
    def is_one(self) -> bool:
        """Whether all is as it should be."""
        sides = zip(*self.answers.values(), strict=True)
        are_close = all(max(side) <= CLOSE * min(side) for side in sides)
        return self.fits and are_close and all(with_lms >= without for without, with_lms in self.answers.values())

    def __str__(self) -> str:
        told = " ".join(f"{without}/{with_lms}" for without, with_lms in dict.fromkeys(self.answers.values()))
        starts = ", ".join(map(str, self.answers))
        return f"| {self.workload} | {self.machine} | {told} | {'yes' if self.is_one else 'NO'} | {starts} |"


def rows(what: str, workloads: Sequence[str], machines: Sequence[str], starts: int) -> Iterator[Row]:
    """One after the other."""
    for workload in workloads:
        with _remembered(question, "trace", _of_step), _remembered(step, "forecast", _of_machine):
            for machine in machines:
                yield _row(what, workload, machine, starts)


def _row(what: str, workload: str, name: str, starts: int) -> Row:
    target, machine = find(workload), load(name)
    answers, fits = {}, True
    for times in TIMES[:starts]:
        start = max(1, round(times * getattr(target, what)))
        size, batch = (start, WORKLOADS[workload]) if what == "size" else (None, start)
        asked = Question(workload, target, Setting(size=size, batch=batch), "planned", None)
        found = largest(asked, what, machine, calibration_for(machine.accelerator))
        assert found.largest is not None
        answers[start] = found.largest.without, found.largest.with_lms
        fits = fits and found.forecast.fits_with
    return Row(workload, name, answers, fits)


def _remembered(module: ModuleType, name: str, key: Callable[..., Any]) -> Any:
    """Patches the function of that name that ``module`` calls: it is asked once for arguments with the same key."""
    function: Callable[..., Any] = getattr(module, name)
    known: dict[Any, Any] = {}

    def ask(*args: Any, **kwargs: Any) -> Any:
        asked = key(*args)
        if asked not in known:
            known[asked] = args, _outcome(function, args, kwargs)  # with what an id is of
        outcome = known[asked][1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return mock.patch.object(module, name, ask)


def _of_step(name: str, target: Target, setting: Setting) -> str:
    return repr(setting)


def _of_machine(trace: Trace, machine: Machine, calibration: Calibration) -> tuple[int, str]:
    return id(trace), machine.name


def _outcome(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["size", "batch"], default="size")
    parser.add_argument("--workload", choices=list(WORKLOADS), action="append", help="repeatable (default: all)")
    parser.add_argument("--machine", action="append", help=f"repeatable (default: {', '.join(MACHINES)})")
    parser.add_argument("--starts", type=int, default=len(TIMES), help="of ten")
    given = parser.parse_args()
    print("| workload | machine | largest without / with LMS | one answer | from |\n|---|---|---|---|---|")
    began_s, are_one = time.monotonic(), True
    for row in rows(given.what, given.workload or list(WORKLOADS), given.machine or MACHINES, given.starts):
        print(row, flush=True)
        are_one = are_one and row.is_one
    print(f"\n{'one answer each' if are_one else 'NOT one answer each'}, {time.monotonic() - began_s:.0f} s")
    return 0 if are_one else 1


if __name__ == "__main__":
    sys.exit(main())
