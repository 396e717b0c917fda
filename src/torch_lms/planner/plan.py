"""A plan from a trace."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from torch_lms.planner.evictions import choose, moved_out
from torch_lms.planner.fetches import schedule
from torch_lms.planner.room import Room
from torch_lms.planner.walk import Choice, Rules, Speeds, Walker
from torch_lms.policy import Plan, Planned
from torch_lms.residency import PageId, Tier
from torch_lms.sim import LinkSpeeds, Simulator
from torch_lms.trace import Trace

_WALKS = (
    *(Rules(price) for price in (0.001, 0.03, 0.1, 0.2)),
    *(Rules(price, is_punctual=False) for price in (0.1, 0.4)),
    Rules(0.03, counts_inputs=True),
    Rules(0.2, is_punctual=False, counts_inputs=True),
)
"""No rules are best for all steps and machines."""

_DERATED = 0.85
"""What the link can be relied on to reach: a plan that expects too much of it stalls, one that expects less loses
little."""

_HIDDEN_COST = 0.01
"""Of a second of the link, even where nobody waits for it: the disk wears, and the next step may not be like this."""

_MOST_TRAFFIC = 1.1
"""A walk that makes nothing again is taken if it moves no more than so many times the least."""


def make_plan(trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> Plan:
    """For steps like ``trace`` under ``limit``. What the trace calls repeatable may be made again.

    Of several candidates, the one that takes least time where they are simulated.

    Args:
        trace: one such step.
        limit: bytes that its pages may occupy on the device.
        ids: numbers of the pages that were alive at its end, by their id.
        speeds: of the link.
    """
    known = {page: number for page, number in ids.items() if trace.pages[number].becomes == number}
    reliable = Speeds(speeds.out * _DERATED, speeds.back * _DERATED)
    best, least_s = None, inf
    for choice in _choices(trace, limit, reliable):
        plan = _plan(trace, limit, choice, known, reliable)
        seconds = _seconds(plan, reliable)
        if best is None or seconds < least_s:
            best, least_s = plan, seconds
    assert best is not None
    return best


def _choices(trace: Trace, limit: int, speeds: Speeds) -> Iterator[Choice]:
    """That which moves least, and walks by several rules."""
    thrifty = choose(trace, limit)
    yield Choice(thrifty, [])
    if not thrifty:
        return
    walker = Walker(trace, limit, speeds)
    for rules in _WALKS:
        choice = walker.walk(rules)
        if choice.dropped or moved_out(choice.moved) <= _MOST_TRAFFIC * moved_out(thrifty):
            yield choice


def _plan(trace: Trace, limit: int, choice: Choice, known: Mapping[PageId, int], speeds: Speeds) -> Plan:
    leaves: list[list[int]] = [[] for _ in trace.ops]
    away = set()
    room = Room(trace, limit)
    for gap in choice.moved:
        room.take(gap)
        if gap.after < 0:
            away.add(gap.page)
        else:
            leaves[gap.after].append(gap.page)
            if gap.spans[-1][0] == 0 and trace.pages[gap.page].becomes >= 0:
                away.add(trace.pages[gap.page].becomes)
    for gap, remade in choice.dropped:
        room.take(gap)
        if remade.before >= 0:
            room.fill((remade.before, remade.before), remade.extra_bytes)
    comes = schedule(trace, choice.moved, room, speeds.back)
    all_remade = tuple(remade for _, remade in choice.dropped)
    return Plan(trace, limit, tuple(map(tuple, leaves)), tuple(map(tuple, comes)), frozenset(away), known, all_remade)


def _seconds(plan: Plan, speeds: Speeds) -> float:
    """Of a step, the second, on a machine with nothing but the link; and some for what it moves unnoticed."""
    links = LinkSpeeds(speeds.out, speeds.back, speeds.out, speeds.back)
    simulator = Simulator(plan.trace, plan.limit, {Tier.HOST: 1 << 62}, links, Planned(), replace(plan, known={}))
    simulator.step()
    step = simulator.step()
    return step.seconds + _HIDDEN_COST * (step.out_bytes / speeds.out + step.in_bytes / speeds.back)
