"""The tunables of IBM's LMS for TensorFlow (TFLMS), by its names, checked. docs/tflms.md says what each means here."""

import logging
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError
from torch_lms.planner.autotuned import checked_file

_AUTO = -1
_ALL_TENSORS = -1
_MAX_UB = 10_000
"""The default of ``ub``, which is no bound."""

_RANGES = {
    "swapout_threshold": (1, None),
    "swapin_ahead": (1, None),
    "swapin_groupby": (0, None),
    "sync_mode": (0, 3),
    "n_tensors": (_ALL_TENSORS, None),
    "lb": (1, None),
    "ub": (1, None),
}
"""The least and the largest value of each that is a number."""

_MAY_BE_AUTO = ("swapout_threshold", "swapin_ahead", "swapin_groupby")
_OF_VERSION_1 = ("n_tensors", "lb", "ub")
_OF_VERSION_2 = (*_MAY_BE_AUTO, "sync_mode", "autotune_plan")
_WITHOUT_MEANING = ("serialization", "serialization_by_size")
_NAMES = (*_OF_VERSION_2, *_OF_VERSION_1, *_WITHOUT_MEANING)

_log = logging.getLogger("torch_lms")


@dataclass(frozen=True)
class Tunables:
    """What is given. Distances are in operations; None is chosen for each kind of step.

    Attributes:
        swapout_threshold: a tensor is evicted before a use that is more than so many operations after it was written.
            None: the largest with which the step fits.
        swapin_ahead: its fetch starts so many operations before that use. None: as many as fit, ten at most.
        swapin_groupby: once it is back, it stays for uses that are no further apart. None: the largest that fits.
        sync_mode: 1 and 3: the program waits for copies out; 2 and 3: for copies in, which start when they are needed.
            None: 0; where ``swapout_threshold`` is chosen, the first that fits.
        autotune_plan: a file with what was chosen before; what is chosen now is added.
        n_tensors: version 1: how many of the tensors that backward needs are evicted, the first ones; -1 is all. None,
            as for the next two: the rules of version 2 hold.
        lb, ub: version 1: the fetch starts at least, and at most, so many operations before the use.
    """

    swapout_threshold: int | None = None
    swapin_ahead: int | None = None
    swapin_groupby: int | None = None
    sync_mode: int | None = None
    autotune_plan: Path | None = None
    n_tensors: int | None = None
    lb: int | None = None
    ub: int | None = None


def tunables_of(tune: Mapping[str, Any]) -> Tunables:
    """The tunables that ``tune`` gives by their names; None, and -1 where IBM had it so, is as good as not given.

    Raises:
        UsageError: there is no such tunable, a value is out of range, or they are of two versions.
    """
    if not isinstance(tune, Mapping):
        raise UsageError(f'tune takes values by name, such as {{"swapout_threshold": 1}}; got {tune!r}')
    unknown = [name for name in tune if name not in _NAMES]
    if unknown:
        raise UsageError(f"tune takes {', '.join(_NAMES)}; got {', '.join(map(repr, unknown))}")
    given = {name: value for name, value in tune.items() if value is not None}
    for name in _WITHOUT_MEANING:
        if given.get(name):
            _say_ignored(name)
    numbers = {name: _number(name, value) for name, value in given.items() if name in _RANGES}
    found: dict[str, Any] = {
        name: value for name, value in numbers.items() if not (name in _MAY_BE_AUTO and value == _AUTO)
    }
    if "autotune_plan" in given:
        found["autotune_plan"] = checked_file(given["autotune_plan"])
    first, second = ([name for name in names if name in found] for names in (_OF_VERSION_1, _OF_VERSION_2))
    if first and second:
        raise UsageError(f"tune takes tunables of one version: {first[0]} is of TFLMS 1, {second[0]} of TFLMS 2")
    if first:
        found = {"n_tensors": _ALL_TENSORS, "lb": 1, "ub": _MAX_UB, **found}
        if found["ub"] < found["lb"]:
            raise UsageError(f"tune: ub must be at least lb; got ub={found['ub']} and lb={found['lb']}")
    return Tunables(**found)


@cache
def _say_ignored(name: str) -> None:
    """Once in a process."""
    _log.warning("%s has no meaning here, and is ignored: operations run one after another anyway", name)


def _number(name: str, value: object) -> int:
    low, high = _RANGES[name]
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # whatever it is, it says so itself
    except TypeError:
        raise UsageError(f"tune: {name} must be a whole number; got {value!r}") from None
    is_auto = name in _MAY_BE_AUTO and number == _AUTO
    if not is_auto and (number < low or (high is not None and number > high)):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        automatic = f", or {_AUTO} to have it chosen" if name in _MAY_BE_AUTO else ""
        raise UsageError(f"tune: {name} must be {bounds}{automatic}; got {number}")
    return number
