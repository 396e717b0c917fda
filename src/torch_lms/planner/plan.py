"""A plan from a trace."""

from collections.abc import Mapping

from torch_lms.planner.evictions import choose
from torch_lms.planner.fetches import schedule
from torch_lms.planner.room import Room
from torch_lms.policy import Plan
from torch_lms.residency import PageId
from torch_lms.trace import Trace


def make_plan(trace: Trace, limit: int, ids: Mapping[PageId, int], fetch_bytes_per_s: float) -> Plan:
    """For steps like ``trace`` under ``limit``.

    Args:
        trace: one such step.
        limit: bytes that its pages may occupy on the device.
        ids: numbers of the pages that were alive at its end, by their id.
        fetch_bytes_per_s: how fast pages come back.
    """
    chosen = choose(trace, limit)
    room = Room(trace, limit)
    leaves: list[list[int]] = [[] for _ in trace.ops]
    away = set()
    for gap in chosen:
        room.take(gap)
        if gap.after < 0:
            away.add(gap.page)
        else:
            leaves[gap.after].append(gap.page)
            if gap.spans[-1][0] == 0 and trace.pages[gap.page].becomes >= 0:
                away.add(trace.pages[gap.page].becomes)
    comes = schedule(trace, chosen, room, fetch_bytes_per_s)
    known = {page: number for page, number in ids.items() if trace.pages[number].becomes == number}
    return Plan(trace, limit, tuple(map(tuple, leaves)), tuple(map(tuple, comes)), frozenset(away), known)
