"""Remembers the kinds of steps that a program makes, and a plan for each (N15)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from torch_lms.engine.backend import Mark
from torch_lms.engine.step_record import StepRecord
from torch_lms.policy import Plan, PlanCursor
from torch_lms.residency import Book, PageId
from torch_lms.trace import Trace

_MAX_PLANS = 4
"""Kinds of steps that are remembered: two crop sizes, training and validation, say."""

_MAX_SEEN = 64
"""Signatures of steps for which there is no plan."""

_WASTED = 0.8
"""A plan for so small a share of the limit is better made anew."""


class Speeds(NamedTuple):
    """Speeds of the link to the next tier.

    Attributes:
        d2h, h2d: bytes per second from the device, and to it.
        overlap_penalty: share of a transfer's time that the program loses though it does not wait, since the same
            cores do both.
    """

    d2h: float
    h2d: float
    overlap_penalty: float = 0.0


MakePlan = Callable[[Trace, int, Mapping[PageId, int], Speeds], Plan]
"""Makes a plan for steps like a trace, under a limit, given the numbers of the pages that live on (``planner``)."""


@dataclass(frozen=True, slots=True)
class EndedStep:
    """What there is to learn from.

    Attributes:
        record: of the step.
        done: the cursor that followed its plan to the end of the step; None if none did.
        limit: bytes that pages may occupy in the next steps.
        evicted_bytes: in this step.
        speeds: of the link so far.
    """

    record: StepRecord
    done: PlanCursor | None
    limit: int
    evicted_bytes: int
    speeds: Speeds


class Plans(Protocol):
    """Whoever knows plans for the steps to come."""

    def begin_step(self, book: Book, limit: int) -> list[PlanCursor]:
        """A step begins, with the pages of ``book``. A cursor for each plan that it may follow, the likeliest first."""

    def end_step(self, step: EndedStep) -> None:
        """A step ended."""


@dataclass(slots=True)
class Kind:
    """A kind of steps.

    Attributes:
        signature: of such steps.
        plan: for them.
        steps: how many followed it.
        evicted_bytes: in these steps.
        floor_bytes: the least that any plan evicts in one; None until somebody asks for it.
    """

    signature: int
    plan: Plan
    steps: int = 0
    evicted_bytes: int = 0
    floor_bytes: float | None = None


class PlanCache:
    """The plans of one device. Not thread-safe.

    Args:
        make_plan: makes a plan from a trace.
        seconds: tells seconds from marks.

    Attributes:
        kinds: the kinds of steps known, the last followed first.
        planned_steps: steps that followed a plan from their first operation to their last.
        diverged_steps: steps that followed no plan to their end, though there were plans.
        replans: plans made after the first.
    """

    def __init__(self, make_plan: MakePlan, seconds: Callable[[Mark], float]) -> None:
        self.kinds: list[Kind] = []
        self.planned_steps = 0
        self.diverged_steps = 0
        self.replans = 0
        self._make_plan = make_plan
        self._seconds = seconds
        self._seen: list[int] = []

    def begin_step(self, book: Book, limit: int) -> list[PlanCursor]:
        """See ``Plans``."""
        self.kinds = [kind for kind in self.kinds if _WASTED * limit <= kind.plan.limit <= limit]
        living = [(page.id, page.nbytes) for page in book]
        return [PlanCursor(kind.plan, living) for kind in self.kinds]

    def end_step(self, step: EndedStep) -> None:
        """See ``Plans``. Of a kind of step that comes a second time a plan is made: what never repeats is not worth
        one.
        """
        for kind in self.kinds:
            if step.done is not None and kind.plan is step.done.plan:
                self.planned_steps += 1
                kind.steps += 1
                kind.evicted_bytes += step.evicted_bytes
                self.kinds.remove(kind)
                self.kinds.insert(0, kind)
                return
        if self.kinds:
            self.diverged_steps += 1
        signature = step.record.signature
        if signature not in self._seen:
            self._seen = [*self._seen, signature][-_MAX_SEEN:]
            return
        if self.kinds:
            self.replans += 1
        trace = step.record.trace(self._seconds)
        plan = self._make_plan(trace, step.limit, step.record.numbers, step.speeds)
        others = [kind for kind in self.kinds if kind.signature != signature]
        self.kinds = [Kind(signature, plan), *others][:_MAX_PLANS]

    def reset_counts(self) -> None:
        """Start counting anew."""
        self.planned_steps = 0
        self.diverged_steps = 0
        self.replans = 0
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

    def begin_step(self, book: Book, limit: int) -> list[PlanCursor]:
        """See ``Plans``."""
        known = {page: number for number, page in self.living.items()}
        pages = self._plan.trace.pages
        return [PlanCursor(replace(self._plan, known=known), [(page, pages[n].nbytes) for page, n in known.items()])]

    def end_step(self, step: EndedStep) -> None:
        """See ``Plans``: there is nothing to learn."""
