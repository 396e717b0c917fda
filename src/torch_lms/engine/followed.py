"""Which plans a step follows."""

from torch_lms.engine.plan_cache import Plans
from torch_lms.engine.step_record import StepRecord
from torch_lms.policy import PlanCursor, Planned, Policy, Rejoining
from torch_lms.residency import PageId


class Followed:
    """Follows a step in the plans that it has been like so far, in larger ones where it outgrows them, and in one that
    it has left once it is like that again.

    Args:
        policy: follows the first of the plans, if it is one that does.
        plans: knows them; None if there are never any.

    Attributes:
        cursors: where the step is in the plans that it follows.
    """

    def __init__(self, policy: Policy, plans: Plans | None) -> None:
        self.cursors: list[PlanCursor] = []
        self._policy = policy
        self._plans = plans
        self._record: StepRecord | None = None
        self._rejoining: Rejoining | None = None  # the plan that the step has left last, as long as it follows none

    def begin(self, record: StepRecord, cursors: list[PlanCursor]) -> None:
        """A step begins, and may follow the plans of ``cursors``. ``record``: of the step."""
        self._record = record
        self._follow(cursors)

    def stop(self) -> None:
        """The step is not recorded any more, and follows nothing."""
        self._record = None
        self._rejoining = None
        self._follow([])

    def join(self, cursors: list[PlanCursor]) -> None:
        """Plans have been made since the step began without one: follow those that it has been like so far."""
        if self._record is not None:
            for cursor in cursors:
                self._record.retrace(cursor)
        self._follow_or_replace(cursors)

    @property
    def last(self) -> PlanCursor | None:
        """The plan that the step follows to its end, or has left last; None if it was like none."""
        left = [] if self._rejoining is None else [self._rejoining.cursor]
        return max([*self.cursors, *left], key=lambda cursor: cursor.is_done, default=None)

    @property
    def is_left(self) -> bool:
        """Whether the step has left a plan, and may be like it again."""
        return self._rejoining is not None

    # -- what happens in the step ------------------------------------------------------------------------------------

    def op_begins(self, name: str, pages: tuple[PageId, ...]) -> None:
        """An operation begins, which is not recorded yet."""
        if self.cursors:
            for cursor in self.cursors:
                cursor.op_begins(name, pages)
            self._forget_diverged((name, pages))
        elif self._rejoining is not None:
            self._rejoin(self._rejoining, name, pages)

    def created(self, page: PageId, nbytes: int) -> None:
        """It created a page."""
        for cursor in self.cursors:
            cursor.created(page, nbytes)
            self._forget_diverged()  # makes a new list: this loop goes on over the old one
        if self._rejoining is not None:
            self._rejoining.created(page, nbytes)

    def died(self, page: PageId) -> None:
        """The storage of ``page`` is gone."""
        for cursor in self.cursors:
            cursor.died(page)
        if self._rejoining is not None:
            self._rejoining.died(page)

    def _forget_diverged(self, op: tuple[str, tuple[PageId, ...]] | None = None) -> None:
        """Follow larger plans where pages have outgrown one. ``op``: it begins, and is not recorded yet."""
        left = self.cursors
        if not any(cursor.has_diverged for cursor in left):
            return
        self._follow_or_replace(left, op)
        if not self.cursors:
            self._rejoining = Rejoining(left[0])
            if op is not None:
                self._rejoin(self._rejoining, *op)

    def _follow_or_replace(self, cursors: list[PlanCursor], op: tuple[str, tuple[PageId, ...]] | None = None) -> None:
        """Follow those of ``cursors`` that have not diverged, or what there is instead of them."""
        followed = [self._followed_instead(cursor, op) if cursor.has_diverged else cursor for cursor in cursors]
        self._follow([cursor for cursor in followed if cursor is not None])

    def _rejoin(self, rejoining: Rejoining, name: str, pages: tuple[PageId, ...]) -> None:
        """Follow the plan again that the step has left, if it is like that again."""
        if rejoining.op_begins(name, pages):
            self._follow([rejoining.cursor])

    def _followed_instead(self, left: PlanCursor, op: tuple[str, tuple[PageId, ...]] | None) -> PlanCursor | None:
        if self._plans is None or self._record is None or left.has_rejoined:
            return None
        cursor = self._plans.larger(left)
        while cursor is not None:
            self._record.retrace(cursor)
            if op is not None:
                cursor.op_begins(*op)
            if not cursor.has_diverged:
                break
            cursor = self._plans.larger(cursor)
        return cursor

    def _follow(self, cursors: list[PlanCursor]) -> None:
        self.cursors = cursors
        if cursors:
            self._rejoining = None
        if isinstance(self._policy, Planned):
            self._policy.cursor = cursors[0] if cursors else None
