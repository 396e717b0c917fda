"""A plan from a trace."""

from collections.abc import Mapping
from math import inf

from torch_lms.planner.evictions import choose
from torch_lms.planner.fetches import schedule
from torch_lms.planner.gaps import Gap
from torch_lms.planner.remakes import Speeds, prices_of, remake, seconds_of
from torch_lms.planner.room import Room
from torch_lms.policy import Plan, Remade
from torch_lms.residency import PageId
from torch_lms.trace import Trace


def make_plan(trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> Plan:
    """For steps like ``trace`` under ``limit``. What the trace calls repeatable may be made again.

    Args:
        trace: one such step.
        limit: bytes that its pages may occupy on the device.
        ids: numbers of the pages that were alive at its end, by their id.
        speeds: of the link.
    """
    moved, remade, room = _cheapest(trace, limit, speeds)
    leaves: list[list[int]] = [[] for _ in trace.ops]
    away = set()
    for gap in moved:
        if gap.after < 0:
            away.add(gap.page)
        else:
            leaves[gap.after].append(gap.page)
            if gap.spans[-1][0] == 0 and trace.pages[gap.page].becomes >= 0:
                away.add(trace.pages[gap.page].becomes)
    comes = schedule(trace, moved, room, speeds.back)
    known = {page: number for page, number in ids.items() if trace.pages[number].becomes == number}
    return Plan(
        trace, limit, tuple(map(tuple, leaves)), tuple(map(tuple, comes)), frozenset(away), known, tuple(remade)
    )


def _cheapest(trace: Trace, limit: int, speeds: Speeds) -> tuple[list[Gap], list[Remade], Room]:
    """What is moved, what is made again, and the room that this leaves: of a choice that takes everything for moved,
    and one that expects to make again what it can, whichever takes less time.
    """
    best: tuple[list[Gap], list[Remade], Room] | None = None
    least_s = inf
    prices = prices_of(trace, speeds)
    for chosen in (choose(trace, limit), *([choose(trace, limit, prices)] if prices else [])):
        room = Room(trace, limit)
        for gap in chosen:
            room.take(gap)
        moved, remade = remake(trace, chosen, room, speeds)
        seconds = seconds_of(trace, moved, remade, speeds)
        if best is None or seconds < least_s:
            best, least_s = (moved, remade, room), seconds
    assert best is not None
    return best
