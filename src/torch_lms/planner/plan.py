"""A plan from a trace."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import NamedTuple

from torch_lms.engine import Speeds
from torch_lms.planner.evictions import choose, choose_dropped, moved_out
from torch_lms.planner.fetches import schedule
from torch_lms.planner.gaps import Gap
from torch_lms.planner.room import Room
from torch_lms.planner.walk import Choice, Rules, Walker
from torch_lms.policy import Plan, Planned
from torch_lms.residency import PageId, Tier
from torch_lms.sim import LinkSpeeds, SimulatedStep, Simulator
from torch_lms.trace import Trace

_WALKS = (
    *(Rules(price) for price in (0.1, 0.03, 0.2)),
    *(Rules(price, focus=4.0) for price in (0.001, 0.02)),
    Rules(0.01, counts_inputs=True, focus=4.0),
    Rules(0.1, focus=1.0),
    Rules(0.1, is_punctual=False, focus=1.0),
    *(Rules(0.2, is_punctual=False, counts_inputs=counts) for counts in (False, True)),
    Rules(0.4, is_punctual=False),
)
"""No rules are best for all steps and machines."""

_DERATED = 0.85
"""What the link can be relied on to reach: a plan that expects too much of it stalls, one that expects less loses
little."""

_HIDDEN_COST = 0.01
"""Of a second of the link, even where nobody waits for it: the disk wears, and the next step may not be like this."""

_MOST_TRAFFIC = 1.03
"""A walk that makes nothing again is taken if it moves no more than so many times the least."""

_ENOUGH = 1.02
"""Times the step without a limit: a plan that takes no longer need not be bettered."""

_MOST_ANCHORS_TRIED = 12
_MOST_VARIANTS = 40
_MOST_WALKED = 16_000
"""Operations, by all variants together: long steps are not planned for minutes."""


def make_plan(trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> Plan:
    """For steps like ``trace`` under ``limit``. What the trace calls repeatable may be made again.

    Of several candidates, the one that takes least time where they are simulated.

    Args:
        trace: one such step.
        limit: bytes that its pages may occupy on the device.
        ids: numbers of the pages that were alive at its end, by their id.
        speeds: of the link.
    """
    search = _Search(trace, limit, ids, speeds._replace(out=speeds.out * _DERATED, back=speeds.back * _DERATED))
    if search.best.choice.moved:
        for rules in (*_WALKS, *_shared_walks(speeds.lost)):
            search.walk(rules)
        enough_s = _ENOUGH * trace.seconds
        for _ in range(min(_MOST_VARIANTS, _MOST_WALKED // len(trace.ops))):
            variant = next((rules for rules in search.variants() if rules not in search.tried), None)
            if variant is None or search.best.seconds <= enough_s:
                break
            search.walk(variant)
    return search.best.plan


def _shared_walks(lost: float) -> list[Rules]:
    """Where a second of the link costs so much by itself."""
    return [Rules(lost), Rules(lost, is_punctual=False), Rules(lost, counts_inputs=True)] if lost else []


class _Candidate(NamedTuple):
    """A plan, how long a step takes with it and by how many bytes it exceeds what it may, and how it came about."""

    seconds: float
    excess: float
    plan: Plan
    choice: Choice
    rules: Rules | None


class _Search:
    """Among plans; it begins with that which moves least.

    Attributes:
        best: so far.
        tried: all rules walked by.
    """

    def __init__(self, trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> None:
        self._trace, self._limit, self._speeds = trace, limit, speeds
        self._stock_s = trace.seconds
        self._known = {page: number for page, number in ids.items() if trace.pages[number].becomes == number}
        self.tried: set[Rules] = set()
        thrifty = choose(trace, limit)
        self._most_bytes = _MOST_TRAFFIC * moved_out(thrifty)
        workspace = max((op.work.workspace_bytes for op in trace.ops if op.work is not None), default=0)
        least = trace.working_set_bytes  # below it nobody can stay; above it, making again may exceed the limit
        self._most_held = least + workspace if limit < least else inf
        self.best = self._candidate(Choice(thrifty, []), None)

    @cached_property
    def _walker(self) -> Walker:
        return Walker(self._trace, self._limit, self._speeds)

    def walk(self, rules: Rules) -> None:
        """Try a walk by ``rules``; and what it moves with other pages dropped, since a walk cannot look back."""
        self.tried.add(rules)
        choice = self._walker.walk(rules)
        self._try(choice, rules)
        if choice.dropped:
            self._try(self._dropped_beside(choice.moved, rules.anchors), rules)

    def _try(self, choice: Choice, rules: Rules | None) -> None:
        made_s = sum(self._walker.seconds(remade) for _, remade in choice.dropped)
        if not self.best.excess and self._stock_s + made_s >= self.best.seconds:
            return
        if choice.dropped or moved_out(choice.moved) <= self._most_bytes:
            found = self._candidate(choice, rules)
            self.best = min(self.best, found, key=lambda one: (one.excess, one.seconds))

    def _dropped_beside(self, moved: list[Gap], anchors: Set[int]) -> Choice:
        """What takes least to be made again, if these move and ``anchors`` are not made again."""
        room = Room(self._trace, self._limit)
        for gap in moved:
            room.take(gap)
        begun = {(gap.page, gap.after) for gap in moved}
        programs = {
            gap: program
            for gap, program in self._walker.programs.items()
            if gap.page not in anchors and (gap.page, gap.after) not in begun
        }
        chosen = choose_dropped(room, {gap: self._walker.seconds(program) for gap, program in programs.items()})
        return Choice(moved, [(gap, programs[gap]) for gap in chosen])

    def variants(self) -> Iterator[Rules]:
        """Rules like those of the best, if it makes pages again: an anchor more (of what takes long); other prices."""
        rules = self.best.rules
        if rules is None or not self.best.choice.dropped:
            return
        seconds: defaultdict[int, float] = defaultdict(float)
        for _, remade in self.best.choice.dropped:
            seconds[remade.page] += self._walker.seconds(remade)
        for page in sorted(seconds, key=seconds.__getitem__, reverse=True)[:_MOST_ANCHORS_TRIED]:
            yield rules._replace(anchors=rules.anchors | {page})
        for factor in (0.5, 2.0):
            yield rules._replace(price=rules.price * factor)

    def _candidate(self, choice: Choice, rules: Rules | None) -> _Candidate:
        plan = _plan(self._trace, self._limit, choice, self._known, self._speeds)
        step = _simulated(plan, self._speeds)
        copies_s = step.out_bytes / self._speeds.out + step.in_bytes / self._speeds.back
        excess = max(0, step.peak_bytes - self._most_held)
        return _Candidate(step.seconds + _HIDDEN_COST * copies_s, excess, plan, choice, rules)


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


def _simulated(plan: Plan, speeds: Speeds) -> SimulatedStep:
    """A step, the second, on a machine with nothing but the link."""
    links = LinkSpeeds(speeds.out, speeds.back, speeds.out, speeds.back, lost=speeds.lost)
    simulator = Simulator(plan.trace, plan.limit, {Tier.HOST: 1 << 62}, links, Planned(), replace(plan, known={}))
    simulator.step()
    return simulator.step()
