"""When pages start to come back: as late as they arrive in time, or earlier if the link is busy then."""

from collections.abc import Iterable
from itertools import accumulate

from torch_lms.planner.gaps import Gap
from torch_lms.planner.room import Room
from torch_lms.trace import Trace


def schedule(trace: Trace, chosen: Iterable[Gap], room: Room, bytes_per_s: float) -> list[list[int]]:
    """For each operation the pages that may start to come back when it begins, the first needed first.

    The fetch needed last is placed first, each before those placed already: one link, first come, first served. As
    steps follow each other, "last" is before the longest rest. Where the room does not last until the page is needed,
    it starts later.

    Args:
        trace: the step.
        chosen: when pages are away. Those not needed again, or needed by the operation right after, do not come early.
        room: under the limit with ``chosen`` taken; the fetches are taken from it.
        bytes_per_s: of the link, as far as it can be relied on: a page that comes too early takes room that the plan
            knows to be free; one that comes too late is waited for.
    """
    ops = len(trace.ops)
    starts = list(accumulate((op.seconds for op in trace.ops), initial=0.0))
    comes: list[list[tuple[int, int]]] = [[] for _ in trace.ops]
    back = [gap for gap in chosen if gap.before >= 0]
    first = _after_longest_rest(sorted({gap.before for gap in back}), starts)
    free_at = float("inf")
    for gap in sorted(back, key=lambda gap: _from(gap.before, first, ops), reverse=True):
        needed = _from(gap.before, first, ops)
        began = needed - ((gap.before - gap.after - 1) % ops + 1)
        start_at = min(_start(starts, needed), free_at) - gap.nbytes / bytes_per_s
        position = needed
        while position - 1 > began and _start(starts, position) > start_at:
            if not room.has(position - 1, gap.nbytes):
                break
            position -= 1
            room.add(position, gap.nbytes)
        free_at = min(free_at, max(start_at, _start(starts, position)))
        if position < needed:
            is_heir = position - began + gap.after >= ops  # it comes in the step after that in which it left
            comes[position % ops].append((needed, trace.pages[gap.page].becomes if is_heir else gap.page))
    return [[number for _, number in sorted(pages)] for pages in comes]


def _after_longest_rest(needed: list[int], starts: list[float]) -> int:
    """Of operations that need pages, the one that follows the longest time in which none does; steps repeat."""
    since = [starts[needed[-1]] - starts[-1], *(starts[position] for position in needed)] if needed else []
    rests = ((starts[position] - before_s, position) for before_s, position in zip(since, needed, strict=False))
    return max(rests, default=(0.0, 0))[1]


def _from(position: int, first: int, ops: int) -> int:
    """``position``, or the same one of the next step: not before ``first``."""
    return position if position >= first else position + ops


def _start(starts: list[float], position: int) -> float:
    """Of an operation, of the steps before and after, too."""
    step, position = divmod(position, len(starts) - 1)
    return starts[position] + step * starts[-1]
