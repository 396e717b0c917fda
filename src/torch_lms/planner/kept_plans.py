"""Plans that are kept in a directory: the next run of a program need not make them anew."""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch_lms.engine import MakePlan, Speeds
from torch_lms.errors import UsageError
from torch_lms.planner.autotuned import kind_of, replace_file
from torch_lms.policy import Plan, Recomputation
from torch_lms.residency import PageId
from torch_lms.trace import Trace

_FORMAT = "torch-lms plan"
_VERSION = 1

_VARIABLE = "TORCH_LMS_PLANS"

_SPARE = 0.95
"""A plan for less of the limit than this is better made anew."""

_log = logging.getLogger("torch_lms")


@dataclass(frozen=True)
class KeptPlans:
    """Makes plans, and keeps each in a file of ``directory``: see ``engine.MakePlan``. It can be pickled.

    A file is named by the kind of step, in any process the same: operations, and sizes of pages. A plan that was made
    for a limit that is higher, or much lower, is not taken. A file that cannot be read or written only costs a plan.

    Attributes:
        make_plan: makes plans that are kept.
        directory: where.
        make_first: makes a plan where none is kept, which is not kept: a better one follows. None: ``make_plan`` does.
    """

    make_plan: MakePlan
    directory: Path
    make_first: MakePlan | None = None

    def __call__(self, trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> Plan:
        may_recompute = any(op.is_repeatable for op in trace.ops)
        path = self.directory / f"{kind_of(trace, {'recompute': may_recompute})}.json"
        maker = _name_of(self.make_plan)
        plan = _read(path, trace, limit, ids, maker)
        if plan is not None:
            return plan
        if self.make_first is not None:
            return self.make_first(trace, limit, ids, speeds)
        plan = self.make_plan(trace, limit, ids, speeds)
        replace_file(path, json.dumps(_as_json(plan, maker)))
        return plan


def _name_of(make_plan: MakePlan) -> str:
    """Of the maker and its settings, in any process the same."""
    if isinstance(make_plan, partial):
        return f"{make_plan.func.__qualname__} {make_plan.keywords}"
    return str(getattr(make_plan, "__qualname__", type(make_plan).__qualname__))


def _as_json(plan: Plan, maker: str) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "maker": maker,
        "limit": plan.limit,
        "evicts": plan.evicts,
        "fetches": plan.fetches,
        "away": sorted(plan.away),
        "recomputations": plan.recomputations,
        "waits_for_evictions": plan.waits_for_evictions,
    }


def _read(path: Path, trace: Trace, limit: int, ids: Mapping[PageId, int], maker: str) -> Plan | None:
    """The plan in the file, for the pages that live now; None if there is none that will do."""
    try:
        found = json.loads(path.read_text())
        if (found["format"], found["version"], found["maker"]) != (_FORMAT, _VERSION, maker):
            return None
        if not _SPARE * limit <= found["limit"] <= limit:
            return None
        plan = Plan(
            trace,
            found["limit"],
            _numbers(found["evicts"]),
            _numbers(found["fetches"]),
            frozenset(found["away"]),
            dict(ids),
            tuple(_recomputation(fields) for fields in found["recomputations"]),
            bool(found["waits_for_evictions"]),
        )
        _check(plan)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("the plan in %s cannot be used, and is made anew: %s", path, error)
        return None
    return plan


def _recomputation(fields: list[Any]) -> Recomputation:
    page, after, before, ops, inputs, extra_bytes = fields
    return Recomputation(page, after, before, tuple(ops), tuple(inputs), extra_bytes)


def _numbers(lists: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(each) for each in lists)


def _check(plan: Plan) -> None:
    """Whether it is one for its trace.

    Raises:
        ValueError: it names operations or pages that are not there.
    """
    ops, pages = len(plan.trace.ops), len(plan.trace.pages)
    named = [*plan.evicts, *plan.fetches, plan.away, *(r.inputs for r in plan.recomputations)]
    places = [op for r in plan.recomputations for op in (r.after, *r.ops)]
    ends = [r.before for r in plan.recomputations]
    if len(plan.evicts) != ops or len(plan.fetches) != ops:
        raise ValueError(f"it is for {len(plan.evicts)} operations, the step has {ops}")
    if not all(0 <= page < pages for numbers in named for page in numbers):
        raise ValueError(f"it names pages that are not among the step's {pages}")
    if not all(0 <= place < ops for place in places) or not all(-1 <= end < ops for end in ends):
        raise ValueError(f"it names operations that are not among the step's {ops}")


def kept_in(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The directory in which plans are kept, which is made if it is not there; None if they are not.

    Raises:
        UsageError: it cannot be written.
    """
    given = environment.get(_VARIABLE)
    if not given:
        return None
    directory = Path(given).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{_VARIABLE} must be a directory in which plans are kept; got {given!r}: {error}") from error
    if not os.access(directory, os.W_OK):
        raise UsageError(f"{_VARIABLE} must be a directory that can be written; got {given!r}")
    return directory
