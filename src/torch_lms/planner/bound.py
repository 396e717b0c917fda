"""The least time that any schedule takes on a modelled machine. Needs scipy: for tests and benchmarks."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_lms.engine import Speeds
from torch_lms.planner.gaps import Gap, gaps_of, written
from torch_lms.planner.headroom import Headroom
from torch_lms.planner.recomputation import Producers
from torch_lms.policy import Recomputation
from torch_lms.trace import Trace

_Term = tuple[int, float]
"""A variable's column, and its coefficient."""


def bound_seconds(trace: Trace, limit: int, speeds: Speeds) -> float:
    """The least seconds of a step like ``trace`` under ``limit``: the optimum of a linear program. No plan is faster.

    Pages may be away by parts, moved or dropped.

    - What is dropped is recomputed when it is needed. That costs the operations that produced it, from what is alive by
      then, whether on the device or away; what several pages are recomputed from is recomputed once for all of them.
    - What is moved costs link time, each direction by itself, beside the operations. What is away during an operation,
      and was written in the same step, was evicted after that and before the operation. What is needed in the same
      step is fetched after the operation.
    """
    from scipy.optimize import linprog

    gaps = gaps_of(trace)
    excess = Headroom(trace, limit).excess
    if not gaps or not (excess > 0).any():
        return trace.seconds
    producers = Producers(trace)
    recomputations = [producers.recomputation(gap) for gap in gaps]
    columns = _Columns.of(trace, gaps)
    rows = _Rows()
    _require_room(rows, columns, trace, gaps, excess, speeds)
    _require_copies_and_reruns(rows, columns, trace, gaps, recomputations)
    _require_time(rows, columns, trace, gaps, speeds)

    price = np.zeros(columns.total + 1)
    price[columns.total] = 1.0
    bounds: list[tuple[float, float | None]] = [(0.0, 1.0) for _ in columns.moved]
    bounds += [(0.0, float(recomputation is not None)) for recomputation in recomputations]
    bounds += [(0.0, 1.0) for _ in columns.copied]
    bounds += [(0.0, None) for _ in (*columns.again, columns.total)]
    solved = linprog(price, A_ub=rows.matrix(columns.total + 1), b_ub=rows.at_most, bounds=bounds)
    if solved.x is None:
        raise RuntimeError(f"the program was not solved: {solved.message}")
    return float(solved.fun)


class _Columns(NamedTuple):
    """Where the variables of the program stand. Shares are from 0 to 1.

    Attributes:
        moved: for each gap, the share of its page that is evicted and fetched.
        dropped: for each gap, the share of its page that is dropped and recomputed.
        copied: for each content, the share of it that is copied from the device.
        again: for each operation, how often it is run again.
        total: the seconds of the step.
    """

    moved: range
    dropped: range
    copied: dict[int, int]
    again: range
    total: int

    @classmethod
    def of(cls, trace: Trace, gaps: list[Gap]) -> "_Columns":
        versions = dict.fromkeys(gap.version for gap in gaps if not gap.is_copied)
        copied = {version: 2 * len(gaps) + number for number, version in enumerate(versions)}
        first_again = 2 * len(gaps) + len(copied)
        total = first_again + len(trace.ops)
        return cls(range(len(gaps)), range(len(gaps), 2 * len(gaps)), copied, range(first_again, total), total)


def _require_room(
    rows: "_Rows",
    columns: _Columns,
    trace: Trace,
    gaps: list[Gap],
    excess: npt.NDArray[np.int64],
    speeds: Speeds,
) -> None:
    """At each operation over the limit enough is away, and there is time to evict it before and to fetch it after."""
    seconds = np.array([op.seconds for op in trace.ops])
    ends_s = np.cumsum(seconds)
    begins_s = ends_s - seconds
    for position in np.flatnonzero(excess > 0).tolist():
        freed: list[_Term] = []
        evicted: list[_Term] = []
        fetched: list[_Term] = []
        for number, gap in enumerate(gaps):
            times = gap.times_away(position)
            if not times:
                continue
            freed.append((columns.moved[number], -float(times * gap.nbytes)))
            freed.append((columns.dropped[number], -float(times * gap.nbytes)))
            if 0 <= written(trace, gap) <= gap.after < position:
                evicted.append((columns.moved[number], gap.nbytes / speeds.d2h))
            if gap.before > position:
                fetched.append((columns.moved[number], gap.nbytes / speeds.h2d))
        rows.add(freed, -float(excess[position]))
        rows.add([*evicted, (columns.total, -1.0)], begins_s[position] - trace.seconds)
        rows.add([*fetched, (columns.total, -1.0)], -ends_s[position])


def _require_copies_and_reruns(
    rows: "_Rows", columns: _Columns, trace: Trace, gaps: list[Gap], recomputations: list[Recomputation | None]
) -> None:
    """A page is away only once; what is moved was copied; what is dropped has its operations run again."""
    runs: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (gap, recomputation) in enumerate(zip(gaps, recomputations, strict=True)):
        rows.add([(columns.moved[number], 1.0), (columns.dropped[number], 1.0)], 1.0)
        if not gap.is_copied:
            rows.add([(columns.moved[number], 1.0), (columns.copied[gap.version], -1.0)], 0.0)
        if recomputation is None:
            continue
        for op in recomputation.ops:
            # What produces the page itself runs once for each gap of its content: their shares add up. What runs on
            # the way may serve all pages that are dropped: each share is a bound by itself.
            is_producer = gap.page in (*trace.ops[op].creates, *trace.ops[op].writes)
            purpose = gap.version if is_producer else -1 - number
            runs[purpose, op].append(columns.dropped[number])
    for (_, op), dropped in runs.items():
        rows.add([*((column, 1.0) for column in dropped), (columns.again[op], -1.0)], 0.0)


def _require_time(rows: "_Rows", columns: _Columns, trace: Trace, gaps: list[Gap], speeds: Speeds) -> None:
    """The step takes no less than the copies of each direction, and no less than all operations."""
    sizes = {gap.version: gap.nbytes for gap in gaps}
    d2h = [(column, sizes[version] / speeds.d2h) for version, column in columns.copied.items()]
    h2d = [(columns.moved[number], gap.nbytes / speeds.h2d) for number, gap in enumerate(gaps) if gap.before >= 0]
    reruns = [(columns.again[number], op.seconds) for number, op in enumerate(trace.ops)]
    rows.add([*d2h, (columns.total, -1.0)], 0.0)
    rows.add([*h2d, (columns.total, -1.0)], 0.0)
    rows.add([*reruns, (columns.total, -1.0)], -trace.seconds)


class _Rows:
    """The constraints of a linear program: sums of terms, each at most some figure.

    Attributes:
        at_most: these figures.
    """

    def __init__(self) -> None:
        self.at_most: list[float] = []
        self._entries: list[tuple[int, int, float]] = []

    def add(self, terms: Iterable[_Term], at_most: float) -> None:
        """Require that the sum of ``terms`` is at most ``at_most``."""
        row = len(self.at_most)
        self._entries.extend((row, column, coefficient) for column, coefficient in terms)
        self.at_most.append(at_most)

    def matrix(self, columns: int) -> Any:
        """All coefficients, as a sparse matrix."""
        from scipy.sparse import coo_matrix

        rows, numbers, coefficients = zip(*self._entries, strict=True)
        return coo_matrix((coefficients, (rows, numbers)), shape=(len(self.at_most), columns)).tocsr()
