"""The least time that any schedule takes on a modelled machine. Needs scipy: for tests and benchmarks."""

from collections import defaultdict
from typing import Any

import numpy as np

from torch_lms.engine import Speeds
from torch_lms.planner.gaps import gaps_of, written
from torch_lms.planner.remakes import Makers
from torch_lms.planner.room import Room
from torch_lms.trace import Trace


def bound_seconds(trace: Trace, limit: int, speeds: Speeds) -> float:
    """Of a step like ``trace`` under ``limit``: a linear program. No plan can be faster.

    Pages may be away by parts, moved or dropped. What is dropped is made again when it is needed: that costs the
    operations that made it, from what is alive by then, whether there or away; what several pages are made from is made
    once for all of them. What is moved costs link time, each direction by itself, beside the operations. What is away
    during an operation, and was written in the same step, left after that and before the operation; what is needed in
    the same step comes back after it.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    gaps, excess = gaps_of(trace), Room(trace, limit).excess
    positions = np.flatnonzero(excess > 0)
    if not len(positions) or not gaps:
        return trace.seconds
    makers = Makers(trace)
    programs = [makers.program(gap) for gap in gaps]
    count = len(gaps)
    contents = {version: n for n, version in enumerate(dict.fromkeys(g.version for g in gaps if not g.is_copied))}
    # variables: moved (by gap), dropped (by gap), copied out (by content), run again (by operation), seconds in all
    copied, again = 2 * count, 2 * count + len(contents)
    total = again + len(trace.ops)
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
    times: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for n, (gap, program) in enumerate(zip(gaps, programs, strict=True)):
        row([(n, 1.0), (n + count, 1.0)], 1.0)
        if not gap.is_copied:
            row([(n, 1.0), (copied + contents[gap.version], -1.0)], 0.0)
        for op in program.ops if program is not None else ():
            is_own = gap.page in (*trace.ops[op].creates, *trace.ops[op].writes)
            times[gap.version if is_own else -1 - n, op].append(n + count)
    for (_, op), dropped in times.items():
        row([*((n, 1.0) for n in dropped), (again + op, -1.0)], 0.0)
    sizes = {gap.version: gap.nbytes for gap in gaps}
    out = [(copied + n, sizes[version] / speeds.out) for version, n in contents.items()]
    back = [(n, gap.nbytes / speeds.back) for n, gap in enumerate(gaps) if gap.before >= 0]
    row([*out, (total, -1.0)], 0.0)
    row([*back, (total, -1.0)], 0.0)
    row([*((again + n, op.seconds) for n, op in enumerate(trace.ops)), (total, -1.0)], -trace.seconds)
    rows, columns, values = zip(*entries, strict=True)
    matrix: Any = coo_matrix((values, (rows, columns)), shape=(len(most), total + 1)).tocsr()
    price = np.zeros(total + 1)
    price[total] = 1.0
    upper = [*[1.0] * count, *(float(program is not None) for program in programs), *[1.0] * len(contents)]
    free = [None] * (total + 1 - again)
    solved = linprog(price, A_ub=matrix, b_ub=most, bounds=[(0.0, most_of) for most_of in (*upper, *free)])
    if solved.x is None:
        raise RuntimeError(f"the program was not solved: {solved.message}")
    return float(solved.fun)
