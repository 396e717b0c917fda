"""Which plan a step follows."""

from torch_lms.engine.plan_cache import Plans
from torch_lms.engine.step_record import StepRecord
from torch_lms.policy import PlanCursor, Planned, Policy, Rejoining
from torch_lms.residency import PageId

_Begun = tuple[str, tuple[PageId, ...]]
"""The name and the pages of an operation that begins, and is not recorded yet."""


class Followed:
    """Follows a step in one plan: the likeliest; where the step leaves that, another that it has been like so far, or a
    larger one, if it has outgrown it; and one that it has left, once it is like that again.

    Args:
        policy: follows the plan, if it is one that does.
        plans: knows them; None if there are never any.

    Attributes:
        cursor: where the step is in its plan; None if it follows none.
    """

    def __init__(self, policy: Policy, plans: Plans | None) -> None:
        self.cursor: PlanCursor | None = None
        self._policy = policy
        self._plans = plans
        self._record: StepRecord | None = None
        self._others: list[PlanCursor] = []  # of plans that may be the step's, too: they have heard of nothing
        self._rejoining: Rejoining | None = None  # the plan that the step has left last, as long as it follows none

    def begin(self, record: StepRecord, cursors: list[PlanCursor]) -> None:
        """A step begins, and may follow the plans of ``cursors``, the likeliest first. ``record``: of the step."""
        self._record = record
        self._others = cursors[1:]
        self._follow(cursors[0] if cursors else None)

    def stop(self) -> None:
        """The step is not recorded any more, and follows nothing."""
        self._record = None
        self._others = []
        self._rejoining = None
        self._follow(None)

    def join(self, cursors: list[PlanCursor]) -> None:
        """Plans have been made since the step began without one: follow one that it has been like so far."""
        self._others = cursors
        self._follow(self._another())

    def ended(self) -> PlanCursor | None:
        """The step is over: the plan that it was like to its end, or has left last; None if it was like none."""
        last = self.cursor if self._rejoining is None else self._rejoining.cursor
        while last is not None and not last.is_done and self._others:
            other = self._others.pop(0)
            if self._record is not None:
                self._record.retrace(other)
            last = other if other.is_done else last
        return last

    @property
    def may_rejoin(self) -> bool:
        """Whether the step has left a plan, and may be like it again."""
        return self._rejoining is not None

    # -- what happens in the step ------------------------------------------------------------------------------------

    def op_begins(self, name: str, pages: tuple[PageId, ...]) -> None:
        """An operation begins, which is not recorded yet."""
        if self.cursor is not None:
            self.cursor.op_begins(name, pages)
            self._look_whether_left(self.cursor, (name, pages))
        elif self._rejoining is not None:
            self._rejoin(self._rejoining, (name, pages))

    def created(self, page: PageId, nbytes: int) -> None:
        """It created a page, which is recorded."""
        if self.cursor is not None:
            self.cursor.created(page, nbytes)
            self._look_whether_left(self.cursor)
        elif self._rejoining is not None:
            self._rejoining.created(page, nbytes)

    def found(self, page: PageId, nbytes: int) -> None:
        """What is no part of the step created a page."""
        if self.cursor is not None:
            self.cursor.found(page, nbytes)
        elif self._rejoining is not None:
            self._rejoining.found(page, nbytes)

    def died(self, page: PageId) -> None:
        """The storage of ``page`` is gone."""
        if self.cursor is not None:
            self.cursor.died(page)
        elif self._rejoining is not None:
            self._rejoining.died(page)

    def _look_whether_left(self, cursor: PlanCursor, begun: _Begun | None = None) -> None:
        if not cursor.has_diverged:
            return
        self._follow(self._another(cursor, begun))
        if self.cursor is None:
            self._rejoining = Rejoining(cursor)
            if begun is not None:
                self._rejoin(self._rejoining, begun)

    def _another(self, left: PlanCursor | None = None, begun: _Begun | None = None) -> PlanCursor | None:
        """A plan that the step has been like until now, instead of the one that it has ``left``."""
        if self._plans is None or self._record is None or (left is not None and left.has_rejoined):
            return None
        cursor = None if left is None else self._plans.larger(left)
        while cursor is not None or self._others:
            if cursor is None:
                cursor = self._others.pop(0)
            self._record.retrace(cursor)
            if begun is not None:
                cursor.op_begins(*begun)
            if not cursor.has_diverged:
                return cursor
            cursor = self._plans.larger(cursor)
        return None

    def _rejoin(self, rejoining: Rejoining, begun: _Begun) -> None:
        """Follow the plan again that the step has left, if it is like that again."""
        if rejoining.op_begins(*begun):
            self._follow(rejoining.cursor)

    def _follow(self, cursor: PlanCursor | None) -> None:
        self.cursor = cursor
        if cursor is not None:
            self._rejoining = None
        if isinstance(self._policy, Planned):
            self._policy.cursor = cursor
