"""When fetches start: as late as pages arrive in time, or earlier if the link is busy then."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import inf

import numpy as np

from torch_lms.planner.gaps import Gap
from torch_lms.planner.headroom import Headroom
from torch_lms.trace import Trace

_TOGETHER_BYTES = 512 << 10
"""Small pages come in groups of so many bytes, which are read at once (``native/csrc/spill.h``)."""


def schedule(trace: Trace, chosen: Iterable[Gap], room: Headroom, bytes_per_s: float) -> list[list[int]]:
    """For each operation, the pages whose fetches may start when it begins, the first needed first.

    There is one link, first come, first served. The fetch needed last is placed first, and each of the others before
    those placed already. As steps follow each other, "last" means before the longest rest. Small pages come in groups,
    each when the first page of the group before is needed. Where the room does not last until a page is needed, its
    fetch starts later.

    Args:
        trace: the step.
        chosen: when pages are away. Those not needed again, or needed by the operation right after, are not fetched
            early.
        room: the headroom with ``chosen`` taken.
        bytes_per_s: of the link, as far as it can be relied on. A page that comes too early takes room that the plan
            knows to be free; one that comes too late is waited for.
    """
    ops = len(trace.ops)
    starts = trace.starts_s
    # Of the step before, this one and the next: a fetch for the next may start in this one, or for this one before.
    starts_s = [start_s + step * starts[-1] for step in (-1, 0, 1) for start_s in starts[:-1]]
    excess = room.excess.copy()
    fetched = [gap for gap in chosen if gap.before >= 0]
    first = _after_longest_rest(sorted({gap.before for gap in fetched}), starts)
    fetches: list[list[tuple[int, int]]] = [[] for _ in trace.ops]  # when each page is needed, and its number
    fetched.sort(key=lambda gap: _unrolled(gap.before, first, ops))
    groups_begin = _in_groups([(_unrolled(gap.before, first, ops), gap.nbytes) for gap in fetched])
    link_free_until_s = inf
    for gap, group_begins in zip(reversed(fetched), reversed(groups_begin), strict=True):
        needed = _unrolled(gap.before, first, ops)
        evicted = needed - (gap.before - gap.after + (ops if gap.wraps or gap.before <= gap.after else 0))
        start_at_s = min(starts_s[ops + needed], link_free_until_s) - gap.nbytes / bytes_per_s
        begins_by_then = bisect_right(starts_s, start_at_s) - 1 - ops
        begins = max(min(begins_by_then, group_begins), evicted + 1)
        meanwhile = np.arange(min(begins, needed), needed)
        without_room = np.flatnonzero(excess[meanwhile % ops] + gap.nbytes > 0)
        if len(without_room):
            meanwhile = meanwhile[without_room[-1] + 1 :]
        excess[meanwhile % ops] += gap.nbytes
        position = needed - len(meanwhile)
        link_free_until_s = min(link_free_until_s, max(start_at_s, starts_s[ops + position]))
        if position == needed:
            continue  # it is fetched by whoever needs it
        page = gap.page
        is_in_next_step = position - evicted + gap.after >= ops
        if is_in_next_step:
            page = trace.pages[gap.page].successor
        fetches[position % ops].append((needed, page))
    return [[page for _, page in sorted(pages)] for pages in fetches]


def _in_groups(needed: list[tuple[int, int]]) -> list[int]:
    """The operation at which each page's group is fetched; of a page that is none of a group, the one that needs it.

    Args:
        needed: the operations that need pages, in their order, and the pages' bytes.
    """
    begins = []
    first = first_of_group_before = needed[0][0] if needed else 0
    group_bytes = 0
    for position, nbytes in needed:
        if nbytes >= _TOGETHER_BYTES:
            begins.append(position)
            continue
        if group_bytes >= _TOGETHER_BYTES:
            first, first_of_group_before, group_bytes = position, first, 0
        begins.append(first_of_group_before)
        group_bytes += nbytes
    return begins


def _after_longest_rest(needed: list[int], starts: Sequence[float]) -> int:
    """Of the operations ``needed``, which need pages, the one before which no other does for the longest time. Steps
    repeat, so the first of them comes after the last one of the step before.
    """
    if not needed:
        return 0
    longest = (0.0, 0)
    before_s = starts[needed[-1]] - starts[-1]
    for position in needed:
        rest_s = starts[position] - before_s
        longest = max(longest, (rest_s, position))
        before_s = starts[position]
    return longest[1]


def _unrolled(position: int, first: int, ops: int) -> int:
    """``position``, or that of the same operation in the next step if it is before ``first``."""
    return position if position >= first else position + ops
