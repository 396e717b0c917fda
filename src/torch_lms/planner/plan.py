"""A plan from a trace."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from math import inf
from typing import NamedTuple

from torch_lms.engine import Speeds
from torch_lms.planner.evictions import choose, choose_dropped, moved_out
from torch_lms.planner.fetches import schedule
from torch_lms.planner.gaps import Gap
from torch_lms.planner.headroom import Headroom
from torch_lms.planner.rehearsal import Stage
from torch_lms.planner.walk import Choice, Rules, Walker
from torch_lms.policy import Plan
from torch_lms.residency import PageId
from torch_lms.trace import Trace

_WALKS = (
    Rules(0.1),
    Rules(0.03),
    Rules(0.2),
    Rules(0.001, focus=4.0),
    Rules(0.02, focus=4.0),
    Rules(0.01, counts_inputs=True, focus=4.0),
    Rules(0.1, focus=1.0),
    Rules(0.1, is_punctual=False, focus=1.0),
    Rules(0.2, is_punctual=False),
    Rules(0.2, is_punctual=False, counts_inputs=True),
    Rules(0.4, is_punctual=False),
)
"""The walks that are always made: no rules are best for all steps and machines.

They go back to the prototype of a study, which made 28 walks: seven prices from 0.001 to 2.5, each with and without
``is_punctual`` and ``counts_inputs``. Eight of these came first; they were revised when ``focus`` was added, and two
were added for limits near the working set (W) of the largest operation. How each price was chosen is not recorded. What
plans reach with these walks, beside the prototype and beside a lower bound, benchmarks/simulated.py measures on six
workloads and on machines of the catalogue ("What recomputation saves" in docs/planning.md).
"""

_DISK_WALKS = (
    Rules(1.0),
    Rules(1.0, is_punctual=False),
    Rules(1.0, is_punctual=False, counts_inputs=True),
    Rules(4.0, is_punctual=False),
    Rules(4.0, is_punctual=False, counts_inputs=True),
)
"""Those that are made, too, where host memory may not hold what moves: a second of the link may cost many of the disk.
"""

_HOST_PRICE = 0.3
"""Of all these walks, where a host runs ahead of its device. It moves fewer and larger pages, where that costs little.

Of six workloads at k = 2, 4 and 8 on an H200 and an RTX 4090, with 26 microseconds for an action, this was the best of
0, 0.1, 0.3 and 1 more often than not, and the variants below and three walks without it had most of the rest.
"""

_FREE_HOST_WALKS = _WALKS[3:6]
"""Those that are made without that price as well."""

_OTHER_HOST_PRICES = (0.0, 0.1, 1.0)
"""Those that are tried beside the best plan."""

_DERATED = 0.85
"""Share of the link's measured speed that plans rely on: a plan that expects too much of the link stalls, one that
expects less loses little.

From the simulations of that study: where the link reached 0.7 of the speed planned for, overheads rose by 3 to 32
points; planning for 0.85 of the speed cost 0.4 points at most, and for 0.7 up to 6. docs/planning.md says what the
reserve costs this planner over NVLink ("What recomputation saves").
"""

_HIDDEN_COST = 0.01
"""Cost of a second of the link even where nobody waits for it: the disk wears, and the next step may differ. It decides
between plans that take the same time. How it was chosen is not recorded."""

_MAX_TRAFFIC = 1.03
"""A walk that recomputes nothing is taken only if it moves at most so many times the least, or counts the host.

With 1.1, the plan for one network moved 1.14 times the floor; tests/cpu/test_planned.py asserts 1.1 times at most.
"""

_ENOUGH = 1.02
"""Times the step without a limit: a plan that takes no longer is not improved any more."""

_MAX_ANCHORS_TRIED = 12
"""Anchors that are tried beside one plan, those first that take longest to recompute."""

_MAX_VARIANTS = 24
"""Walks beside ``_WALKS``, at most."""

_MAX_WALKED = 8_000
"""Operations in all these walks together, at most: long steps are not planned for minutes. How this and the two above
were chosen is not recorded; what planning takes with them, docs/planning.md says."""


def quick_plan(trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> Plan:
    """The plan that moves least, with which ``make_plan`` begins, in a third of its time. Arguments as there."""
    least = Choice(choose(trace, limit), [])
    return plan_for(trace, limit, least, _living(trace, ids), _reliable(speeds), Headroom(trace, limit))


def make_plan(trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> Plan:
    """A plan for steps like ``trace`` under ``limit``. What repeatable operations produced may be recomputed.

    Of several candidates, the one is taken with which a simulated step takes least time.

    Args:
        trace: one such step.
        limit: bytes that its pages may occupy on the device.
        ids: numbers of the pages that were alive at its end, by their id.
        speeds: of the link, and of the disk behind host memory.
    """
    search = _Search(trace, limit, ids, _reliable(speeds))
    if not search.best.choice.moved:
        return search.best.plan
    walks = [*_WALKS, *_shared_walks(speeds.overlap_penalty)]
    if moved_out(search.best.choice.moved) > speeds.host_bytes:
        walks += _DISK_WALKS
    if speeds.action_s:
        walks = [*(rules._replace(host_price=_HOST_PRICE) for rules in walks), *_FREE_HOST_WALKS]
    for rules in walks:
        search.walk(rules)
    enough_s = _ENOUGH * trace.seconds
    for _ in range(min(_MAX_VARIANTS, _MAX_WALKED // len(trace.ops))):
        variant = next((rules for rules in search.variants() if rules not in search.tried), None)
        if variant is None or search.best.seconds <= enough_s:
            break
        search.walk(variant)
    if search.best.rules is not None and search.best.seconds > enough_s:
        search.walk(search.best.rules._replace(drops_unneeded=False))
    return search.best.plan


def _reliable(speeds: Speeds) -> Speeds:
    return speeds._replace(
        d2h=speeds.d2h * _DERATED,
        h2d=speeds.h2d * _DERATED,
        disk_write=speeds.disk_write * _DERATED,
        disk_read=speeds.disk_read * _DERATED,
    )


def _living(trace: Trace, ids: Mapping[PageId, int]) -> dict[PageId, int]:
    """Those pages that the next step knows by the number that they have in this one."""
    return {page: number for page, number in ids.items() if trace.pages[number].successor == number}


def _shared_walks(lost: float) -> list[Rules]:
    """Walks for programs whose cores also make the copies: there a second of the link costs ``lost`` by itself."""
    if not lost:
        return []
    return [Rules(lost), Rules(lost, is_punctual=False), Rules(lost, counts_inputs=True)]


class _Candidate(NamedTuple):
    """A plan, and what a simulated step with it takes.

    Attributes:
        seconds: of the step, and ``_HIDDEN_COST`` of its copies.
        excess: bytes beyond what the step may hold.
        plan: the plan.
        choice: what it was made from.
        rules: of the walk that made the choice; None if it is the choice that moves least.
    """

    seconds: float
    excess: float
    plan: Plan
    choice: Choice
    rules: Rules | None


class _Search:
    """A search among plans. It begins with the one that moves least.

    Attributes:
        best: so far.
        tried: all rules walked by.
    """

    def __init__(self, trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> None:
        self._trace = trace
        self._limit = limit
        self._speeds = speeds
        self._stock_s = trace.seconds
        self._known = _living(trace, ids)
        self.tried: set[Rules] = set()

        self._most_held = inf
        if limit < trace.working_set_bytes:
            # Nobody can stay below that. Above it, though, recomputing may exceed the limit for nothing.
            workspace = max((op.work.workspace_bytes for op in trace.ops if op.work is not None), default=0)
            self._most_held = trace.working_set_bytes + workspace

        self._stage = Stage(trace, limit, speeds)
        self._room = Headroom(trace, limit)
        thrifty = choose(trace, limit)
        self._most_bytes = _MAX_TRAFFIC * moved_out(thrifty)
        self.best = self._candidate(Choice(thrifty, []), None, inf)

    @cached_property
    def _walker(self) -> Walker:
        return Walker(self._trace, self._limit, self._speeds)

    def walk(self, rules: Rules) -> None:
        """Try a walk by ``rules``, and what it moves with other pages dropped, since a walk cannot look back."""
        self.tried.add(rules)
        choice = self._walker.walk_on(rules)
        if choice is None:
            return
        self._try(choice, rules)
        if choice.dropped:
            self._try(self._dropped_beside(choice.moved, rules.anchors), rules)

    def _try(self, choice: Choice, rules: Rules) -> None:
        recompute_s = sum(self._walker.seconds(recomputation) for _, recomputation in choice.dropped)
        fetched_bytes = sum(gap.nbytes for gap in choice.moved if gap.before >= 0)
        copies_s = moved_out(choice.moved) / self._speeds.d2h + fetched_bytes / self._speeds.h2d
        least_s = self._stock_s + recompute_s + self._speeds.overlap_penalty * copies_s
        if not self.best.excess and least_s >= self.best.seconds:
            return  # it cannot be better, even if nobody waited for a copy
        if not choice.dropped and not rules.host_price and moved_out(choice.moved) > self._most_bytes:
            return
        found = self._candidate(choice, rules, inf if self.best.excess else self.best.seconds)
        self.best = min(self.best, found, key=lambda one: (one.excess, one.seconds))

    def _dropped_beside(self, moved: list[Gap], anchors: Set[int]) -> Choice:
        """The pages that take least time to recompute, if the pages of ``moved`` move and ``anchors`` are never
        recomputed.
        """
        room = self._room.copy()
        for gap in moved:
            room.take(gap)
        begun = {(gap.page, gap.after) for gap in moved}
        recomputations = {
            gap: recomputation
            for gap, recomputation in self._walker.recomputations.items()
            if gap.page not in anchors and (gap.page, gap.after) not in begun
        }
        seconds = {gap: self._walker.seconds(recomputation) for gap, recomputation in recomputations.items()}
        return Choice(moved, [(gap, recomputations[gap]) for gap in choose_dropped(room, seconds)])

    def variants(self) -> Iterator[Rules]:
        """Rules like those of the best plan, if it recomputes pages: other prices of the host; one anchor more, of
        those that take long; and half and twice the price.
        """
        rules = self.best.rules
        if rules is None or not self.best.choice.dropped:
            return
        seconds: defaultdict[int, float] = defaultdict(float)
        for _, recomputation in self.best.choice.dropped:
            seconds[recomputation.page] += self._walker.seconds(recomputation)
        if self._speeds.action_s:
            for host_price in _OTHER_HOST_PRICES:
                yield rules._replace(host_price=host_price)
        longest_first = sorted(seconds, key=seconds.__getitem__, reverse=True)
        for page in longest_first[:_MAX_ANCHORS_TRIED]:
            yield rules._replace(anchors=rules.anchors | {page})
        for factor in (0.5, 2.0):
            yield rules._replace(price=rules.price * factor)

    def _candidate(self, choice: Choice, rules: Rules | None, give_up_s: float) -> _Candidate:
        """What comes of ``choice``. Its seconds are infinite if they are more than ``give_up_s``."""
        plan = plan_for(self._trace, self._limit, choice, self._known, self._speeds, self._room.copy())
        step = self._stage.rehearse(plan, give_up_s)
        if step is None:
            return _Candidate(inf, inf, plan, choice, rules)
        copies_s = step.evicted_bytes / self._speeds.d2h + step.fetched_bytes / self._speeds.h2d
        excess = max(0, step.peak_bytes - self._most_held)
        return _Candidate(step.seconds + _HIDDEN_COST * copies_s, excess, plan, choice, rules)


def plan_for(
    trace: Trace, limit: int, choice: Choice, known: Mapping[PageId, int], speeds: Speeds, room: Headroom
) -> Plan:
    """The plan for ``choice``, with its fetches placed. What it takes of ``room``, as of a step in which nothing is
    away, is taken from it.
    """
    evicted: list[list[int]] = [[] for _ in trace.ops]
    away = set()  # when the step begins
    for gap in choice.moved:
        room.take(gap)
        if gap.after < 0:
            away.add(gap.page)
            continue
        evicted[gap.after].append(gap.page)
        successor = trace.pages[gap.page].successor
        if gap.wraps and successor >= 0:
            away.add(successor)
    for gap, recomputation in choice.dropped:
        room.take(gap)
        if recomputation.before >= 0:
            room.fill((recomputation.before, recomputation.before), recomputation.extra_bytes)
    fetched = schedule(trace, choice.moved, room, speeds.h2d)
    return Plan(
        trace,
        limit,
        evicts=tuple(tuple(pages) for pages in evicted),
        fetches=tuple(tuple(pages) for pages in fetched),
        away=frozenset(away),
        known=known,
        recomputations=tuple(recomputation for _, recomputation in choice.dropped),
    )
