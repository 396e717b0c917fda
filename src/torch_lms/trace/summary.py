"""A trace at a glance."""

from collections import Counter
from dataclasses import dataclass

from torch_lms.trace.curve import demand_curve
from torch_lms.trace.record import Trace

_LARGEST = 10
"""How many of the largest pages are listed."""


@dataclass(frozen=True, slots=True)
class LargePage:
    """A page, its size, and the operation that created it ("the step before" if none of this step did)."""

    page: int
    nbytes: int
    created_by: str
    born: int
    dead: int


@dataclass(frozen=True, slots=True)
class Summary:
    """One step at a glance.

    Attributes:
        ops, pages: how many it has.
        seconds: the program's own time.
        demand_bytes: the most bytes alive at once.
        peak_op: number and name of the operation at which that is.
        working_set_bytes: the working set (W) of the largest operation.
        largest: the largest pages, the largest first.
        holders: bytes alive at the peak by the operation that created them, most first.
    """

    ops: int
    pages: int
    seconds: float
    demand_bytes: int
    peak_op: tuple[int, str]
    working_set_bytes: int
    largest: tuple[LargePage, ...]
    holders: tuple[tuple[str, int], ...]


def summarize(trace: Trace) -> Summary:
    """Summarize ``trace``."""
    curve = demand_curve(trace)
    by_size = sorted(range(len(trace.pages)), key=lambda number: trace.pages[number].nbytes, reverse=True)
    holders: Counter[str] = Counter()
    for page in trace.pages:
        if page.born <= curve.peak <= page.dead:
            holders[_creator(trace, page.born)] += page.nbytes
    return Summary(
        ops=len(trace.ops),
        pages=len(trace.pages),
        seconds=trace.seconds,
        demand_bytes=curve.demand_bytes,
        peak_op=(curve.peak, trace.ops[curve.peak].name if trace.ops else ""),
        working_set_bytes=trace.working_set_bytes,
        largest=tuple(_large(trace, number) for number in by_size[:_LARGEST]),
        holders=tuple(holders.most_common()),
    )


def _large(trace: Trace, number: int) -> LargePage:
    page = trace.pages[number]
    return LargePage(number, page.nbytes, _creator(trace, page.born), page.born, page.dead)


def _creator(trace: Trace, born: int) -> str:
    return trace.ops[born].name if born >= 0 else "the step before"
