"""Writes every step down, plans for its like, and knows which plan the step that runs may be following."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch_lms.capture.told import Use
from torch_lms.planner import Speeds, floor_bytes, make_plan
from torch_lms.policy import Guide, Plan, Planned
from torch_lms.residency import Book, PageId
from torch_lms.runtime.clock import Mark
from torch_lms.timeline import Lane, Link
from torch_lms.trace import Living, Recorder, Trace

_MOST_PLANS = 4
"""Kinds of steps that are remembered: two crop sizes, training and validation, say."""

_MOST_SEEN = 64
"""Signatures of steps for which there is no plan."""

_WASTED = 0.8
"""A plan for so little of the limit that it is better made again."""

_MOST_OPS = 1_000_000
"""A program whose steps nobody sees end must not fill the memory with its past."""

_BYTES_PER_S = 1e9
"""Of a link on which nothing has moved yet."""


@dataclass(slots=True)
class Kind:
    """A kind of steps.

    Attributes:
        signature: of such steps.
        plan: for them.
        steps: that followed it.
        evicted_bytes: in these steps.
    """

    signature: int
    plan: Plan
    steps: int = 0
    evicted_bytes: int = 0
    _floor_bytes: float | None = None

    def floor_bytes(self) -> float:
        """The least that any plan moves out in all these steps. Takes as long as planning or longer, once.

        Raises:
            ImportError: scipy is not installed.
        """
        if self.steps and self._floor_bytes is None:
            self._floor_bytes = floor_bytes(self.plan.trace, self.plan.limit)
        return self.steps * (self._floor_bytes or 0.0)


class Foresight:
    """Of one device. Not thread-safe.

    Args:
        policy: is told which guide to follow.
        recompute: whether plans may have pages made again.
        when: tells seconds from marks.

    Attributes:
        kinds: the kinds of steps known, the last followed first.
        planned_steps: steps that followed a plan from their first operation to their last.
        diverged_steps: steps that followed no plan to their end, though there were plans.
        replans: plans made after the first.
    """

    def __init__(self, policy: Planned, recompute: bool, when: Callable[[Mark], float]) -> None:
        self.kinds: list[Kind] = []
        self.planned_steps = 0
        self.diverged_steps = 0
        self.replans = 0
        self._evicted_bytes = 0
        self._policy, self._recompute, self._when = policy, recompute, when
        self._recorder: Recorder | None = Recorder(())
        self._last: Recorder | None = None
        self._is_whole = False  # the session began in the midst of a step
        self._guides: list[Guide] = []
        self._seen: list[int] = []

    @property
    def trace(self) -> Trace | None:
        """Of the last step that was recorded; None before. Waits until it is over on the device, too."""
        return None if self._last is None else self._last.trace(self._when)

    def begins(self, op: Use, pages: tuple[PageId, ...], new_bytes: int, now: Mark) -> None:
        """``op`` begins."""
        if self._recorder is None:
            return
        if self._guides:
            for guide in self._guides:
                guide.begins(op.name, pages)
            self._choose_guide()
        self._recorder.begins(op.name, pages, new_bytes, now, self._recompute and self._is_repeatable(op))
        if len(self._recorder) > _MOST_OPS:
            self._recorder, self._guides = None, []
            self._choose_guide()

    def _is_repeatable(self, op: Use) -> bool:
        """As it was in a step that went like this one so far: to look at it anew takes longer."""
        if not self._guides:
            return op.is_repeatable
        guide = self._guides[0]
        return guide.plan.trace.ops[guide.position].is_repeatable

    def paused(self, start: Mark, end: Mark) -> None:
        """Pages moved, and the program waited."""
        if self._recorder is not None:
            self._recorder.paused(start, end)

    @property
    def to_be_repeated(self) -> int:
        """The position of the operation that runs, if a plan may have it repeated; else -1."""
        return next((guide.position for guide in self._guides if guide.may_be_repeated), -1)

    def wrote(self, pages: tuple[PageId, ...]) -> None:
        """The operation that runs wrote ``pages``."""
        if self._recorder is not None:
            self._recorder.wrote(pages)

    def created(self, page: Living) -> None:
        """By the operation that runs."""
        if self._recorder is None:
            return
        self._recorder.created(page)
        if self._guides:
            for guide in self._guides:
                guide.created(page.id, page.nbytes)
            self._choose_guide()

    def died(self, page: PageId) -> None:
        """Its storage is gone."""
        if self._recorder is not None:
            self._recorder.died(page)
            for guide in self._guides:
                guide.died(page)

    def end_step(
        self,
        now: Mark,
        book: Book,
        limit: int,
        is_short: bool,
        evicted_bytes: int,
        links: Mapping[Lane, Link],
        lost: float,
    ) -> None:
        """A step ended.

        Args:
            now: when.
            book: the pages that live now.
            limit: bytes that they may occupy in the next steps.
            is_short: whether room may be short in the next step; else it is neither recorded nor guided.
            evicted_bytes: so far.
            links: how fast pages left and came back so far.
            lost: share of a copy's time that the program loses though it does not wait.
        """
        before, self._recorder = self._recorder, None
        if before is not None and len(before):
            before.finish(now)
            self._last = before
            if self._is_whole:
                moved = evicted_bytes - self._evicted_bytes
                out, back = (links[lane].bytes_per_s or _BYTES_PER_S for lane in (Lane.OUT, Lane.IN))
                speeds = Speeds(out, back, lost)
                self._learn(before, limit, moved, speeds)
        self._evicted_bytes = evicted_bytes
        self.kinds = [kind for kind in self.kinds if _WASTED * limit <= kind.plan.limit <= limit]
        self._guides = []
        if is_short:
            self._is_whole = True
            living = [Living(page.id, page.nbytes, page.unpageable) for page in book]
            self._recorder = Recorder(living, before)
            self._guides = [Guide(kind.plan, [(page.id, page.nbytes) for page in living]) for kind in self.kinds]
        self._choose_guide()

    def _learn(self, step: Recorder, limit: int, evicted_bytes: int, speeds: Speeds) -> None:
        """Of a kind of step that comes a second time a plan is made: what never repeats is not worth one."""
        done = next((guide.plan for guide in self._guides if guide.is_done), None)
        kind = next((kind for kind in self.kinds if kind.plan is done), None)
        if kind is not None:
            self.planned_steps += 1
            kind.steps += 1
            kind.evicted_bytes += evicted_bytes
            self.kinds.remove(kind)
            self.kinds.insert(0, kind)
            return
        self.diverged_steps += bool(self.kinds)
        signature = step.signature
        if signature not in self._seen:
            self._seen = [*self._seen, signature][-_MOST_SEEN:]
            return
        self.replans += bool(self.kinds)
        plan = make_plan(step.trace(self._when), limit, step.numbers, speeds)
        others = [kind for kind in self.kinds if kind.signature != signature]
        self.kinds = [Kind(signature, plan), *others][:_MOST_PLANS]

    def reset_counts(self) -> None:
        """Start counting anew."""
        self.planned_steps = self.diverged_steps = self.replans = self._evicted_bytes = 0
        for kind in self.kinds:
            kind.steps = kind.evicted_bytes = 0

    def _choose_guide(self) -> None:
        self._guides = [guide for guide in self._guides if not guide.is_lost]
        self._policy.guide = self._guides[0] if self._guides else None
