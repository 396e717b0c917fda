"""Remembers the kinds of steps that a program makes, and a plan for each (N15)."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch_lms.engine.backend import Mark
from torch_lms.engine.planning import MadePlan, Planner, PlanOrder, Speeds
from torch_lms.engine.sizes_seen import SizesSeen, likeness
from torch_lms.engine.step_record import StepRecord
from torch_lms.policy import Plan, PlanCursor
from torch_lms.residency import PageId
from torch_lms.timeline import Lane, Span
from torch_lms.trace import Living, Trace, demand_curve

_MAX_PLANS = 24
"""Kinds of steps that are remembered: the crop sizes of a training and the last batch of each, say. Those of other
operations cost a cursor each in every step, some 50 microseconds."""

_MAX_SEEN = 256
"""Kinds of steps of which it is known how often they came and what they lost."""

_WASTED = 0.8
"""A plan for so small a share of the limit is better made anew."""

_PLANNING_OP_S = 1.5e-3
"""What planning takes for each operation, as long as no plan has been made: seconds of a processor."""

_UNPLANNED_OP_S = 1e-4
"""What an operation of a step without a plan takes the host more than one of a step with a plan: seconds. 86 to 134
microseconds were measured where Python decides; with a plan 1.4 by the native interposer, 46 by the Python mode."""

_OUTLOOK_OP_S = 5e-6
"""The same of one that went by an outlook: 6.8 microseconds were measured, and 1.7 with a plan."""

_FIRST_SHARE = 0.3
"""What a first plan, which is made quickly, costs of what planning takes: 0.2 and 0.4 were measured, for 11,593 and 436
operations."""

_MUCH_LESS = 0.85
"""A step that needs no more than so much of what its plan was made for may be better off with a plan of its own. A plan
for steps of other sizes leaves them room to grow by an eighth."""

_UNLIKE = 0
"""Signature of steps that were like no other."""

_MAX_UNLIKE = 3
"""So many such steps may come until a plan is made for one, which others may follow in parts."""

_NEARLY = 0.95
"""A step that leaves so little out, of what the longest did, leaves nothing out."""

_log = logging.getLogger("torch_lms")


@dataclass(frozen=True, slots=True)
class EndedStep:
    """What there is to learn from.

    Attributes:
        record: of the step.
        last: the cursor that the step followed last, to its end or not; None if there was no plan.
        limit: bytes that pages may occupy in the next steps.
        evicted_bytes, fetched_bytes: in this step.
        demand_bytes: the most bytes of pages that were alive at once in it.
        speeds: of the link so far.
    """

    record: StepRecord
    last: PlanCursor | None
    limit: int
    evicted_bytes: int
    fetched_bytes: int
    demand_bytes: int
    speeds: Speeds

    @property
    def done(self) -> PlanCursor | None:
        """The cursor that followed its plan to the end of the step; None if none did."""
        return self.last if self.last is not None and self.last.is_done else None

    @property
    def followed_ops(self) -> int:
        """Operations that were a plan's."""
        return 0 if self.last is None else self.last.followed_ops

    @property
    def lost_s(self) -> float:
        """What its copies took on the link, and what it cost the host to have no plan. A part of that is hidden. Of a
        step that followed a plan in parts, the others count.
        """
        copies_s = self.evicted_bytes / self.speeds.d2h + self.fetched_bytes / self.speeds.h2d
        if self.done is not None:
            return copies_s
        ops, by_outlook = self.record.op_count, self.record.ops_by_outlook
        unplanned = ops - self.followed_ops
        host_s = max(0, unplanned - by_outlook) * _UNPLANNED_OP_S + by_outlook * _OUTLOOK_OP_S
        return unplanned / max(1, ops) * copies_s + host_s


class Plans(Protocol):
    """Whoever knows plans for the steps to come."""

    def begin_step(self, living: Iterable[Living], limit: int) -> list[PlanCursor]:
        """A step begins, with the pages of ``living``. A cursor for each plan that it may follow, the likeliest
        first.
        """

    def larger(self, cursor: PlanCursor) -> PlanCursor | None:
        """What the step may follow instead of ``cursor``, if it has left that because its pages are too large: a cursor
        at the beginning of the step. None if there is nothing.
        """

    def end_step(self, step: EndedStep) -> None:
        """A step ended."""

    @property
    def spans(self) -> Sequence[Span]:
        """When plans were made, by ``time.perf_counter``, the last ones."""

    @property
    def has_news(self) -> bool:
        """Whether there is a plan that ``begin_step`` did not know of, when it was last asked."""


@dataclass(slots=True)
class Kind:
    """A kind of steps.

    Attributes:
        signature: of such steps; or of steps alike, whose pages have other sizes each time.
        plan: for them.
        steps: how many followed it.
        evicted_bytes: in these steps.
        floor_bytes: the least that any plan evicts in one; None until somebody asks for it.
        is_first: whether a better plan is to take its place.
        demand_bytes: the most bytes of pages that are alive at once, as the plan has it.
        became: the numbers of pages that each step makes anew, and those that they had in the next, of the last two.
        becomes: those among them that were the same before, and so are expected.
    """

    signature: int
    plan: Plan
    is_first: bool = False
    steps: int = 0
    evicted_bytes: int = 0
    floor_bytes: float | None = None
    demand_bytes: int = field(init=False)
    became: Mapping[int, int] = field(default_factory=dict)
    becomes: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.demand_bytes = demand_curve(self.plan.trace).demand_bytes

    def is_for(self, limit: int) -> bool:
        """Whether the plan is to be followed under ``limit``. If all fits, and nothing moves, nothing is better."""
        if self.demand_bytes <= limit and not self.plan.moves_anything:
            return True
        return _WASTED * limit <= self.plan.limit <= limit

    def learn_successors(self, before: PlanCursor | None, done: PlanCursor) -> None:
        """A step followed the plan to its end; so did the one ``before``, if there is a cursor of that."""
        became = before.became(done) if before is not None and before.plan is self.plan else {}
        self.becomes = {page: successor for page, successor in became.items() if self.became.get(page) == successor}
        self.became = became

    @property
    def size(self) -> tuple[int, int]:
        """Orders kinds of one structure."""
        return self.demand_bytes, self.signature


@dataclass(slots=True)
class _Seen:
    """A kind of steps for which there was no plan, or a first one.

    Attributes:
        steps: how many came without one.
        lost_s: by all of them, since a plan was last made for them.
        plans: made for them so far, but for first ones.
        sizes: of their pages, of steps that are alike.
    """

    steps: int = 0
    lost_s: float = 0.0
    plans: int = 0
    sizes: SizesSeen = field(default_factory=SizesSeen)


class PlanCache:
    """The plans of one device. Not thread-safe.

    Args:
        planner: makes plans.
        seconds: tells seconds from marks.

    Attributes:
        kinds: the kinds of steps known, the last followed first.
        past: kinds whose plans were followed and given up since: what they moved still counts.
        planned_steps: steps that followed a plan from their first operation to their last.
        diverged_steps: steps that followed no plan to their end, though there were plans.
        rejoined_steps: those among them that had left their plan, and came back to it.
        replans: plans made after the first.
        planning_s: seconds of a processor that plans took.
        spans: when the last plans were made, by ``time.perf_counter``.
    """

    def __init__(self, planner: Planner, seconds: Callable[[Mark], float]) -> None:
        self.kinds: list[Kind] = []
        self.past: list[Kind] = []
        self.planned_steps = 0
        self.diverged_steps = 0
        self.rejoined_steps = 0
        self.replans = 0
        self.planning_s = 0.0
        self.spans: Sequence[Span] = ()
        self._planner = planner
        self._seconds = seconds
        self._living: Mapping[PageId, int] = {}
        self._last: PlanCursor | None = None  # of the step before, if that followed a plan
        self._seen: dict[int, _Seen] = {}
        self._most_ops = 0  # of a step unlike all others
        self._ordered: set[int] = set()
        self._planned_ops = 0
        self._planned_ops_s = 0.0
        self._has_failed = False

    # -- steps -------------------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """See ``Plans``."""
        return self._planner.has_made

    def begin_step(self, living: Iterable[Living], limit: int) -> list[PlanCursor]:
        """See ``Plans``."""
        for made in self._planner.take():
            self._take_in(made)
        self._follow([kind for kind in self.kinds if kind.is_for(limit)])
        self._living = {page.id: page.nbytes for page in living}
        smallest: dict[int, Kind] = {}
        for kind in self.kinds:
            structure = kind.plan.trace.structure
            smallest[structure] = min(smallest.get(structure, kind), kind, key=lambda each: each.size)
        return [self._cursor(kind) for kind in smallest.values()]

    def _cursor(self, kind: Kind) -> PlanCursor:
        last = self._last
        successors = last.successors(kind.becomes) if last is not None and last.plan is kind.plan else {}
        return PlanCursor(kind.plan, self._living, successors)

    def larger(self, cursor: PlanCursor) -> PlanCursor | None:
        """See ``Plans``: the smallest of the same structure that has the page in question as large."""
        its = next((kind for kind in self.kinds if kind.plan is cursor.plan), None)
        if its is None or cursor.outgrown is None:
            return None
        number, nbytes = cursor.outgrown
        trace = its.plan.trace
        place = trace.places[number]
        larger = [
            kind
            for kind in self.kinds
            if kind.size > its.size
            and kind.plan.trace.structure == trace.structure
            and kind.plan.trace.sizes[place] >= nbytes
        ]
        return self._cursor(min(larger, key=lambda each: each.size)) if larger else None

    def end_step(self, step: EndedStep) -> None:
        """See ``Plans``. A plan is ordered for a kind of step that came twice, once it has lost what planning costs. So
        it is for steps that differ in the sizes of their pages alone.

        Where the planner improves plans, a better one follows, once a step has followed the first.
        """
        last, self._last = self._last, step.done
        for kind in self.kinds:
            if step.done is not None and kind.plan is step.done.plan:
                kind.learn_successors(last, step.done)
                self.planned_steps += 1
                kind.steps += 1
                kind.evicted_bytes += step.evicted_bytes
                self.kinds.remove(kind)
                self.kinds.insert(0, kind)
                self._improve(kind, step)
                return
        if self.kinds:
            self.diverged_steps += 1
            self.rejoined_steps += step.last is not None and step.last.has_rejoined
        signature = step.record.signature
        seen = self._count(signature, step.lost_s)
        seen.steps += 1
        if seen.steps > 1:
            is_first = self._is_first(seen)
            if self._is_to_order(signature, seen, step, is_first):
                self._order(signature, step, is_first)
            return
        if not self._has_failed:
            self._planner.get_ready()
        structure = step.record.structure
        seen = self._count(structure, step.lost_s)
        seen.sizes.add(step.record.sizes)
        if self._is_to_order(structure, seen, step, self._is_first(seen)):
            self._order_for_sizes(structure, seen, step)
        if seen.sizes.steps == 1 and step.followed_ops < step.record.op_count / 2:
            self._order_for_unlike(step)

    def _order_for_unlike(self, step: EndedStep) -> None:
        """No step like this was seen so far, and it followed no plan for long. Where that is always so, a plan helps
        that is made for a step with all that others leave out: they follow it in parts.
        """
        seen = self._count(_UNLIKE, step.lost_s)
        seen.steps += 1
        ops = step.record.op_count
        self._most_ops = max(self._most_ops, ops)
        is_long = ops >= self._most_ops * _NEARLY
        if seen.steps > _MAX_UNLIKE and is_long and self._is_to_order(_UNLIKE, seen, step):
            seen.steps = 0
            self._order(_UNLIKE, step)

    def _improve(self, kind: Kind, step: EndedStep) -> None:
        """``step`` followed the plan of ``kind``: another may be better for such steps."""
        trace = kind.plan.trace
        share = step.demand_bytes / max(1, kind.demand_bytes)
        if kind.is_first:
            signature, lost_s = kind.signature, step.lost_s
        elif share <= _MUCH_LESS:
            signature, lost_s = likeness(trace.structure, step.demand_bytes), step.lost_s * (1 - share)
        else:
            return
        seen = self._count(signature, lost_s)
        if not self._is_to_order(signature, seen, step):
            return
        if step.record.structure != trace.structure:  # a page was not made: an operation was interrupted
            seen.lost_s = 0.0
        elif kind.is_first:
            self._order(signature, step, sizes=trace.sizes, followed=trace)
        else:
            seen.sizes.add(step.record.sizes)
            self._order_for_sizes(signature, seen, step, trace)

    def _order_for_sizes(self, signature: int, seen: _Seen, step: EndedStep, followed: Trace | None = None) -> None:
        """Order a plan for steps on pages of the sizes that were ``seen``, two at least."""
        if seen.sizes.steps > 1:
            is_first = followed is None and self._is_first(seen)
            demand_bytes = demand_curve(step.record.trace(self._seconds, seen.sizes.most)).demand_bytes
            self._order(signature, step, is_first, seen.sizes.with_room(demand_bytes, step.limit), followed)

    def _count(self, signature: int, lost_s: float) -> _Seen:
        """Count what a step lost to its kind."""
        seen = self._seen.pop(signature, None) or _Seen()
        self._seen[signature] = seen  # the last seen comes last
        if len(self._seen) > _MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        seen.lost_s += lost_s
        return seen

    def _is_first(self, seen: _Seen) -> bool:
        """Whether a plan for steps that have none is a first one."""
        return self._planner.improves and not seen.plans

    def _is_to_order(self, signature: int, seen: _Seen, step: EndedStep, is_first: bool = False) -> bool:
        is_possible = not self._has_failed and signature not in self._ordered
        return is_possible and self._pays(seen, step.record.op_count, is_first)

    def _order(
        self,
        signature: int,
        step: EndedStep,
        is_first: bool = False,
        sizes: Sequence[int] | None = None,
        followed: Trace | None = None,
    ) -> None:
        """Order a plan for steps like ``step``.

        Args:
            signature: of such steps.
            step: one of them.
            is_first: whether a better plan is to follow.
            sizes: of their pages; None for those of ``step``.
            followed: what its plan was made for, if it followed one.
        """
        self._ordered.add(signature)
        trace = step.record.trace(self._seconds, sizes)
        if followed is not None:
            trace = trace.refined_by(followed)
        self._planner.order(PlanOrder(signature, trace, step.limit, step.record.numbers, step.speeds, is_first))

    def _pays(self, seen: _Seen, ops: int, is_first: bool) -> bool:
        """Whether steps of a kind have lost, without a plan, what making one costs. A kind that came so often is
        expected to come as often again. For one whose plan had to be given up, twice as much counts each time.
        """
        if self._planner.keeps_plans or not self._planner.spares_program:
            return True  # tests and measurements have plans at once
        op_s = self._planned_ops_s / self._planned_ops if self._planned_ops else _PLANNING_OP_S
        cost_s = ops * op_s * (_FIRST_SHARE if is_first else 1.0)
        return bool(seen.lost_s >= cost_s * 2**seen.plans)

    # -- plans -------------------------------------------------------------------------------------------------------

    def _take_in(self, made: MadePlan) -> None:
        """Follow it from now on."""
        signature = made.order.signature
        self._ordered.discard(signature)
        self.planning_s += made.cpu_s
        if made.plan is None:
            self._tell_of_failure(made.failure)
            return
        is_first = made.order.is_first
        if not is_first:
            self._planned_ops += len(made.order.trace.ops)
            self._planned_ops_s += made.cpu_s
        self.spans = [*self.spans, Span(Lane.PLANNING, "plan", made.start_s, made.end_s)][-_MAX_PLANS:]
        if self.kinds:
            self.replans += 1
        seen = self._seen.setdefault(signature, _Seen())
        seen.plans += not is_first
        seen.lost_s = 0.0
        others = [kind for kind in self.kinds if kind.signature != signature]
        self._follow([Kind(signature, made.plan, is_first), *others][:_MAX_PLANS])

    def _follow(self, kinds: list[Kind]) -> None:
        """Follow these from now on."""
        followed = {id(kind) for kind in kinds}
        self.past += [kind for kind in self.kinds if kind.steps and id(kind) not in followed]
        del self.past[:-_MAX_PLANS]  # each holds a trace
        self.kinds = kinds

    def _tell_of_failure(self, why: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.warning(
                "no more plans are made, and steps without one go on reactively, since planning failed: %s. To plan "
                "between steps instead, set TORCH_LMS_PLANNING=at-once",
                why,
            )

    def wait(self) -> None:
        """Wait for the plans that were ordered. They are followed from the next step on."""
        self._planner.wait()

    def close(self) -> None:
        """Make no more plans."""
        self._planner.close()

    def reset_counts(self) -> None:
        """Start counting anew."""
        self.planned_steps = 0
        self.diverged_steps = 0
        self.rejoined_steps = 0
        self.replans = 0
        self.planning_s = 0.0
        self.past.clear()
        for kind in self.kinds:
            kind.steps = 0
            kind.evicted_bytes = 0


class OnePlan:
    """One plan for all steps, as the simulator follows it.

    Attributes:
        living: ids of the pages that live when a step begins, by their number in the plan's trace. Set before each.
    """

    def __init__(self, plan: Plan) -> None:
        self.living: dict[int, PageId] = {}
        self._plan = plan

    spans: Sequence[Span] = ()
    has_news = False

    def begin_step(self, living: Iterable[Living], limit: int) -> list[PlanCursor]:
        """See ``Plans``."""
        known = {page: number for number, page in self.living.items()}
        pages = self._plan.trace.pages
        nbytes = {page: pages[n].nbytes for page, n in known.items()}
        return [PlanCursor(replace(self._plan, known=known), nbytes)]

    def larger(self, cursor: PlanCursor) -> PlanCursor | None:
        """See ``Plans``: there is no other."""
        return None

    def end_step(self, step: EndedStep) -> None:
        """See ``Plans``: there is nothing to learn."""
