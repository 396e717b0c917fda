"""When pages start to come back: as late as they arrive in time, or earlier if the link is busy then."""

from collections.abc import Iterable
from itertools import accumulate

from torch_lms.planner.gaps import Gap
from torch_lms.planner.room import Room
from torch_lms.trace import Trace


def schedule(trace: Trace, chosen: Iterable[Gap], room: Room, bytes_per_s: float) -> list[list[int]]:
    """For each operation the pages that may start to come back when it begins, the first needed first.

    The fetch needed last is placed first, each before those placed already: one link, first come, first served. Where
    the room does not last until the page is needed, it starts later.

    Args:
        trace: the step.
        chosen: when pages are away. Those not needed again, or needed by the operation right after, do not come early.
        room: under the limit with ``chosen`` taken; the fetches are taken from it.
        bytes_per_s: of the link, as far as it can be relied on: a page that comes too early takes room that the plan
            knows to be free; one that comes too late is waited for.
    """
    ops = len(trace.ops)
    starts = list(accumulate((op.seconds for op in trace.ops), initial=0.0))
    whole = starts[-1]
    comes: list[list[tuple[float, int]]] = [[] for _ in trace.ops]
    free_at = float("inf")
    for gap in sorted((gap for gap in chosen if gap.before >= 0), key=lambda gap: _needed(gap, ops), reverse=True):
        needed = _needed(gap, ops)
        needed_at = starts[gap.before] + (whole if needed >= ops else 0.0)
        start_at = min(needed_at, free_at) - gap.nbytes / bytes_per_s
        position = needed
        while position - 1 > gap.after and _start(starts, whole, position) > start_at:
            if not room.has(position - 1, gap.nbytes):
                break
            position -= 1
            room.add(position, gap.nbytes)
        free_at = min(free_at, max(start_at, _start(starts, whole, position)))
        if position < needed:
            comes[position % ops].append((needed, _number(trace, gap, position)))
    return [[number for _, number in sorted(pages)] for pages in comes]


def _needed(gap: Gap, ops: int) -> int:
    """The operation that needs the page, counted on into the next step if the gap goes on there."""
    return gap.before + ops if gap.after >= gap.before else gap.before


def _start(starts: list[float], whole: float, position: int) -> float:
    ops = len(starts) - 1
    return starts[position % ops] + (whole if position >= ops else 0.0)


def _number(trace: Trace, gap: Gap, position: int) -> int:
    """Of the page at that operation: in the next step it may have another number."""
    return trace.pages[gap.page].becomes if position >= len(trace.ops) else gap.page
