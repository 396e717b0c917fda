"""The least that any schedule without recomputation moves from the device in a step. Needs scipy: for tests and
benchmarks.
"""

from typing import Any

import numpy as np

from torch_lms.planner.gaps import gaps_of
from torch_lms.planner.headroom import Headroom
from torch_lms.trace import Trace


def floor_bytes(trace: Trace, limit: int) -> float:
    """The least bytes for ``trace`` under ``limit`` if pages could leave by parts. It is the optimum of a linear
    program, and no plan can do better.

    Where an operation's own pages, and those that must stay, exceed the limit, these may be on the device.
    """
    return _least_bytes(trace, limit, whole_pages=False)


def optimum_bytes(trace: Trace, limit: int) -> float:
    """The least bytes for whole pages: what the best plan moves. It takes long for long traces."""
    return _least_bytes(trace, limit, whole_pages=True)


def _least_bytes(trace: Trace, limit: int, whole_pages: bool) -> float:
    """The optimum of a program with a variable for each gap (is the page away?), and one for each content (was it
    copied?), which its gaps share.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_matrix

    gaps = gaps_of(trace)
    excess = Headroom(trace, limit).excess
    versions = dict.fromkeys(gap.version for gap in gaps if not gap.is_copied)
    copied = {version: len(gaps) + number for number, version in enumerate(versions)}
    price = np.zeros(len(gaps) + len(copied))
    entries: list[tuple[int, int, float]] = []
    least: list[float] = []  # for each row, what it has to reach

    # At each operation over the limit, so many bytes have to be away.
    for position in np.flatnonzero(excess > 0).tolist():
        for column, gap in enumerate(gaps):
            times = gap.times_away(position)
            if times:
                entries.append((len(least), column, float(times * gap.nbytes)))
        least.append(float(excess[position]))
    if not least:
        return 0.0

    # What is away was copied.
    for column, gap in enumerate(gaps):
        if not gap.is_copied:
            price[copied[gap.version]] = gap.nbytes
            entries.append((len(least), copied[gap.version], 1.0))
            entries.append((len(least), column, -1.0))
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
