"""The least time that any schedule takes on a modelled machine. Needs scipy: for tests and benchmarks."""

from typing import Any

import numpy as np

from torch_lms.planner.gaps import gaps_of, written
from torch_lms.planner.room import Room
from torch_lms.planner.walk import Speeds
from torch_lms.trace import Trace


def bound_seconds(trace: Trace, limit: int, speeds: Speeds) -> float:
    """Of a step like ``trace`` under ``limit``: a linear program. No plan can be faster.

    Pages may be away by parts, moved or dropped. What is dropped costs the last operation that made it, once; what is
    moved costs link time, each direction by itself, beside the operations. What is away during an operation, and was
    written in the same step, left after that and before the operation; what is needed in the same step comes back after
    it.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    gaps, excess = gaps_of(trace), Room(trace, limit).excess
    positions = np.flatnonzero(excess > 0)
    if not len(positions) or not gaps:
        return trace.seconds
    count = len(gaps)
    contents = {version: n for n, version in enumerate(dict.fromkeys(g.version for g in gaps if not g.is_copied))}
    # variables: moved (by gap), dropped (by gap), copied out (by content), seconds in all
    copied, total = 2 * count, 2 * count + len(contents)
    entries: list[tuple[int, int, float]] = []
    most: list[float] = []

    def row(values: list[tuple[int, float]], at_most: float) -> None:
        entries.extend((len(most), column, value) for column, value in values)
        most.append(at_most)

    seconds = np.array([op.seconds for op in trace.ops])
    ends_s = np.cumsum(seconds)
    begins_s = ends_s - seconds
    for position in positions:
        there = [n for n, gap in enumerate(gaps) if any(a <= position <= b for a, b in gap.spans)]
        row([(n + k, -float(gaps[n].nbytes)) for n in there for k in (0, count)], -float(excess[position]))
        left = [
            (n, gaps[n].nbytes / speeds.out) for n in there if 0 <= written(trace, gaps[n]) <= gaps[n].after < position
        ]
        comes = [(n, gaps[n].nbytes / speeds.back) for n in there if gaps[n].before > position]
        row([*left, (total, -1.0)], begins_s[position] - trace.seconds)
        row([*comes, (total, -1.0)], -ends_s[position])
    for n, gap in enumerate(gaps):
        row([(n, 1.0), (n + count, 1.0)], 1.0)
        if not gap.is_copied:
            row([(n, 1.0), (copied + contents[gap.version], -1.0)], 0.0)
    sizes = {gap.version: gap.nbytes for gap in gaps}
    out = [(copied + n, sizes[version] / speeds.out) for version, n in contents.items()]
    back = [(n, gap.nbytes / speeds.back) for n, gap in enumerate(gaps) if gap.before >= 0]
    made = [(n + count, _seconds(trace, gap.page, gap.after)) for n, gap in enumerate(gaps)]
    row([*out, (total, -1.0)], 0.0)
    row([*back, (total, -1.0)], 0.0)
    row([*((n, value) for n, value in made if value < np.inf), (total, -1.0)], -trace.seconds)
    rows, columns, values = zip(*entries, strict=True)
    matrix: Any = coo_matrix((values, (rows, columns)), shape=(len(most), total + 1)).tocsr()
    price = np.zeros(total + 1)
    price[total] = 1.0
    upper = [1.0] * total + [None]
    for n, value in made:
        upper[n] = 0.0 if value == np.inf else 1.0
    solved = linprog(price, A_ub=matrix, b_ub=most, bounds=[(0.0, most_of) for most_of in upper], method="highs")
    if solved.x is None:
        raise RuntimeError(f"the program was not solved: {solved.message}")
    return float(solved.fun)


def _seconds(trace: Trace, page: int, after: int) -> float:
    """Of the operation that gave ``page`` what it holds after that one; infinite if it cannot be repeated."""
    makers = [n for n in trace.uses[page] if n <= after and page in (*trace.ops[n].creates, *trace.ops[n].writes)]
    if not makers or not trace.ops[makers[-1]].is_repeatable:
        return float("inf")
    return trace.ops[makers[-1]].seconds
