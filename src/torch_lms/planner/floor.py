"""The least that any schedule without recomputation moves out in a step. Needs scipy: for tests and benchmarks."""

from typing import Any

import numpy as np

from torch_lms.planner.gaps import gaps_of
from torch_lms.planner.room import Room
from torch_lms.trace import Trace


def floor_bytes(trace: Trace, limit: int) -> float:
    """For ``trace`` under ``limit``, if pages could leave by parts: a linear program. No plan can do better.

    Where an operation's own pages, and those that may not leave, exceed the limit, it is these.
    """
    return _least_bytes(trace, limit, whole_pages=False)


def optimum_bytes(trace: Trace, limit: int) -> float:
    """The same for whole pages: what the best plan moves. Takes long for long traces."""
    return _least_bytes(trace, limit, whole_pages=True)


def _least_bytes(trace: Trace, limit: int, whole_pages: bool) -> float:
    """A variable for each gap (is the page away?), and one for each content (was it copied?), which its gaps share."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_matrix

    gaps, excess = gaps_of(trace), Room(trace, limit).excess
    contents = {version: n for n, version in enumerate(dict.fromkeys(g.version for g in gaps if not g.is_copied))}
    price = np.zeros(len(gaps) + len(contents))
    entries: list[tuple[int, int, float]] = []
    least: list[float] = []
    for position in np.flatnonzero(excess > 0):
        for column, gap in enumerate(gaps):
            times = sum(first <= position <= last for first, last in gap.spans)  # twice: the page, and its heir
            if times:
                entries.append((len(least), column, float(times * gap.nbytes)))
        least.append(float(excess[position]))
    if not least:
        return 0.0
    for column, gap in enumerate(gaps):
        if not gap.is_copied:
            copied = len(gaps) + contents[gap.version]
            price[copied] = gap.nbytes
            entries += [(len(least), copied, 1.0), (len(least), column, -1.0)]
            least.append(0.0)
    rows, columns, values = zip(*entries, strict=True)
    matrix: Any = coo_matrix((values, (rows, columns)), shape=(len(least), len(price))).tocsr()
    solved = milp(
        price,
        constraints=LinearConstraint(matrix, lb=least),
        bounds=Bounds(0, 1),
        integrality=np.full(len(price), int(whole_pages)),
    )
    if solved.x is None:
        raise RuntimeError(f"the program was not solved: {solved.message}")
    return float(solved.fun)
