"""With a step that repeats: evict what the plan has away; else what is used last."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType

from torch_lms.policy.base import FirstUse, Outlook, Policy, Prefetch, Recipe, View
from torch_lms.policy.passed import Passed
from torch_lms.policy.plan import Plan
from torch_lms.policy.reactive import Reactive
from torch_lms.residency import Page, PageId


class PlanCursor:
    """Where a step is in the plan that it may be following.

    Pages that the plan knows are bound to their numbers at once, the others when an operation of the plan names them.
    A cursor only ever moves on: at the first operation that is not the plan's it has diverged, until it is told where
    in the plan the step is again. Pages may be smaller than the plan has them, but not larger.

    Args:
        plan: the plan to follow.
        living: bytes of the pages when the step begins, by their ids.
        successors: numbers of pages that the plan does not know, and the step before made, by their ids.

    Attributes:
        due: pages that the plan has away now, those longest due first. A dict for its order, as the next two.
        to_evict: those among them whose eviction may not have started yet.
        to_fetch: pages whose fetch is to start, the first needed first.
        to_drop: pages that the plan has dropped now, and that may not be yet.
        recipes: of all pages that the plan has dropped now, those included that were recomputed as inputs of others.
        position: of the operation that runs, or ran last; -1 before the first.
        followed_ops: operations so far that were the plan's.
        has_diverged: whether the step has left the plan.
        has_rejoined: whether it has left the plan, and come back.
        creates_more: whether an operation created a larger page than the plan has it create. Others may, too.
        outgrown: if it did so because a page is larger than the plan has it: the page's number there, and its bytes.
    """

    def __init__(
        self, plan: Plan, living: Mapping[PageId, int], successors: Mapping[PageId, int] = MappingProxyType({})
    ) -> None:
        self.plan = plan
        self.followed_ops = 0
        self.has_diverged = False
        self.has_rejoined = False
        self.creates_more = False
        self.outgrown: tuple[int, int] | None = None
        self.due: dict[PageId, None] = {}
        self.to_evict: dict[PageId, None] = {}
        self.to_fetch: dict[PageId, None] = {}
        self.to_drop: dict[PageId, Recipe] = {}
        self.recipes: dict[PageId, Recipe] = {}
        self.position = -1
        self._ops = plan.trace.ops
        self._created = 0
        self._numbers: dict[PageId, int] = {}
        self._inherited: dict[PageId, int] = {}  # of pages that lived when the step began, those included that died
        self._ids: dict[int, PageId] = {}
        self._nbytes = dict(living)
        self._newly_bound: list[tuple[PageId, int]] = []
        for page, number in (*plan.known.items(), *successors.items()):
            if living.get(page, inf) <= plan.trace.pages[number].nbytes and number not in self._ids:
                self._bind(page, number)

    @property
    def is_done(self) -> bool:
        """Whether the step has been the plan's, from its first operation to its last."""
        return not (self.has_diverged or self.has_rejoined) and self.position == len(self._ops) - 1

    def op_begins(self, name: str, pages: tuple[PageId, ...]) -> None:
        """Move on by one operation."""
        if self.has_diverged:
            return
        position = self.position + 1
        is_planned = position < len(self._ops) and self._ops[position].name == name
        if is_planned and self._are(pages, self._ops[position].pages, position):
            self._come_to(position, pages)
            self.followed_ops += 1
        else:
            self.has_diverged = True

    def rejoin(self, position: int, numbers: Mapping[PageId, int]) -> None:
        """The step is like the plan again: the operation at ``position`` begins.

        Args:
            position: further on than the cursor.
            numbers: in the plan, of pages that had others so far, or none.
        """
        for page, number in numbers.items():
            self._bind(page, number)
        for passed in range(self.position + 1, position + 1):
            its = self._ops[passed]
            self._come_to(passed, [self._ids[number] for number in its.pages if number in self._ids])
        self.has_diverged = False
        self.has_rejoined = True
        self.outgrown = None

    def _come_to(self, position: int, pages: Sequence[PageId]) -> None:
        """The operation at ``position``, on ``pages``, begins: what the plan does then."""
        if self.position >= 0:
            self._op_ended()
        self.position = position
        self._created = 0
        self._forget(pages)
        for page in pages:
            self.recipes.pop(page, None)
        for recomputation in self.plan.recomputed_before.get(self.position, ()):
            self._forget([self._ids[number] for number in recomputation.inputs if number in self._ids])
        if self.plan.fetches[self.position]:
            to_fetch = [self._ids[number] for number in self.plan.fetches[self.position] if number in self._ids]
            self._forget(to_fetch)
            self.to_fetch.update(dict.fromkeys(to_fetch))

    def created(self, page: PageId, nbytes: int) -> None:
        """Bind what the operation that runs has created."""
        self._nbytes[page] = nbytes
        if self.has_diverged or self.position < 0:
            return
        creates = self._ops[self.position].creates
        if self._created >= len(creates) or not self._fits(page, creates[self._created]):
            self.has_diverged = True
            self.creates_more = self.outgrown is not None
            return
        self._bind(page, creates[self._created])
        self._created += 1

    def found(self, page: PageId, nbytes: int) -> None:
        """There is a page that no operation of the step created."""
        self._nbytes[page] = nbytes

    def passed(self, passed: Passed) -> None:
        """Move on by operations that were the plan's, and for which it had nothing to do."""
        if passed.ops:
            self.followed_ops += passed.ops
            self.position = passed.position
            self._created = passed.created
        for page, number in passed.bound:
            self._bind(page, number)
        for birth in passed.births:
            self._nbytes[birth.page] = birth.nbytes
            self._bind(birth.page, birth.number)
        self._newly_bound.clear()
        self.due = dict.fromkeys(passed.lists.due)
        self.to_evict = dict.fromkeys(passed.lists.to_evict)
        self.to_fetch = dict.fromkeys(passed.lists.to_fetch)
        self.recipes = {recipe.page: recipe for recipe in passed.lists.recipes}
        self.to_drop = {page: self.recipes[page] for page in passed.lists.to_drop}
        for page in passed.deaths:
            self.died(page)

    def became(self, later: "PlanCursor") -> dict[int, int]:
        """The numbers that pages have at the end of this step, and those that they had in the next, where these differ.

        Args:
            later: the cursor of the next step, which followed the same plan.
        """
        return {
            number: later._inherited[page]
            for page, number in self._numbers.items()
            if later._inherited.get(page, number) != number
        }

    def successors(self, becomes: Mapping[int, int]) -> dict[PageId, int]:
        """The numbers that pages of this step, which is over, have in the next, by their ids. See ``became``."""
        return {page: becomes[number] for page, number in self._numbers.items() if number in becomes}

    def take_newly_bound(self) -> list[tuple[PageId, int]]:
        """Pages and their numbers in the plan, those that were bound since this was last asked."""
        bound, self._newly_bound = self._newly_bound, []
        return bound

    def died(self, page: PageId) -> None:
        """Forget ``page``: its storage is gone."""
        self._nbytes.pop(page, None)
        self._forget((page,))
        self.recipes.pop(page, None)
        number = self._numbers.pop(page, None)
        if number is not None:
            del self._ids[number]

    def number_of(self, page: PageId) -> int | None:
        """Its number in the plan, if it has one so far."""
        return self._numbers.get(page)

    def may_be(self, page: PageId, number: int, position: int) -> bool:
        """Whether ``page`` may be what the plan's operation at ``position`` calls ``number``, which it is not so far.

        Where a part of the step is left out, what went into that takes the place of what comes out. And a page that the
        plan does not use may be used instead of one that it does: each step may take another batch, say.
        """
        its, uses = self.plan.trace.pages, self.plan.trace.uses
        is_born = its[number].born >= 0
        is_taken = number in self._ids and (is_born or uses[number][0] < position)
        if is_taken or self._nbytes.get(page, inf) > its[number].nbytes:
            return False
        now = self._numbers.get(page)
        return now is None or not uses[now] or (is_born and its[now].born >= 0)

    def next_use(self, page: PageId) -> int:
        """How many operations from now ``page`` is used, as far as is known: 0 if that is unknown."""
        number = self._numbers.get(page)
        if number is None:
            return 0
        trace = self.plan.trace
        uses = trace.uses[number]
        index = bisect_right(uses, self.position)
        if index < len(uses):
            return uses[index] - self.position
        outlives_step = trace.pages[number].dead == len(trace.ops)
        successor = trace.pages[number].successor if outlives_step else -1
        uses_in_next_step = trace.uses[successor] if successor >= 0 else ()
        first_use = uses_in_next_step[0] if uses_in_next_step else len(trace.ops)
        return len(trace.ops) - self.position + first_use

    def _op_ended(self) -> None:
        """What the plan has away from here on is due."""
        for number in self.plan.evicts[self.position]:
            if number in self._ids:
                page = self._ids[number]
                self.due[page] = self.to_evict[page] = None
        for recomputation in self.plan.dropped_after.get(self.position, ()):
            inputs = tuple(self._ids[number] for number in recomputation.inputs if number in self._ids)
            if recomputation.page in self._ids and len(inputs) == len(recomputation.inputs):
                page = self._ids[recomputation.page]
                self.due[page] = None
                number = self.plan.numbers[recomputation]
                recipe = Recipe(page, inputs, recomputation.extra_bytes, recomputation.ops, number)
                self.to_drop[page] = self.recipes[page] = recipe

    def _forget(self, pages: Iterable[PageId]) -> None:
        """``pages`` are in use, or to be fetched: they are not due any more."""
        for page in pages:
            self.due.pop(page, None)
            self.to_evict.pop(page, None)
            self.to_fetch.pop(page, None)
            self.to_drop.pop(page, None)

    def _are(self, pages: tuple[PageId, ...], numbers: tuple[int, ...], position: int) -> bool:
        """Whether ``pages`` are what the plan's operation at ``position`` calls ``numbers``. Then they have these."""
        if len(pages) != len(numbers):
            return False
        found: list[tuple[PageId, int]] = []
        for page, number in zip(pages, numbers, strict=True):
            if self._numbers.get(page) == number:
                continue
            is_new = page not in self._numbers and number not in self._ids
            if not (self._fits(page, number) if is_new else self.may_be(page, number, position)):
                return False
            found.append((page, number))
        for page, number in found:
            self._bind(page, number)
        return True

    def _fits(self, page: PageId, number: int) -> bool:
        """Whether ``page`` may be what the plan calls ``number``, which no page is yet."""
        nbytes = self._nbytes.get(page)
        if nbytes is not None and nbytes > self.plan.trace.pages[number].nbytes:
            self.outgrown = number, nbytes
            return False
        return nbytes is not None

    def _bind(self, page: PageId, number: int) -> None:
        self._ids.pop(self._numbers.get(page, -1), None)
        self._numbers.pop(self._ids.get(number, -1), None)
        self._numbers[page] = number
        self._ids[number] = page
        self._newly_bound.append((page, number))
        if self.plan.trace.pages[number].born < 0:
            self._inherited[page] = number
        if self.position < 0 and number in self.plan.away:
            self.due[page] = self.to_evict[page] = None


class Planned(Policy):
    """Follows a plan while there is one, and is reactive otherwise.

    Args:
        kind: the policy that makes such plans: its name while one is followed.

    Attributes:
        cursor: knows where the step is in its plan; None if it follows none.
    """

    def __init__(self, kind: str = "planned") -> None:
        self.cursor: PlanCursor | None = None
        self._kind = kind
        self._otherwise = Reactive()

    @property
    def name(self) -> str:
        return "reactive" if self.cursor is None else self._kind

    @property
    def defers_trimming(self) -> bool:
        return self.cursor is not None

    def victims(self, view: View) -> Iterator[Page]:
        cursor = self.cursor
        if cursor is None:
            yield from self._otherwise.victims(view)
            return
        for number in list(cursor.due):
            page = view.find(number)
            if page is not None:
                yield page
        rest = [*view.clean.values(), *view.evicting.values(), *view.dirty.values()]
        yield from sorted(rest, key=lambda page: cursor.next_use(page.id), reverse=True)

    def recipe(self, page: PageId) -> Recipe | None:
        return self.cursor.recipes.get(page) if self.cursor is not None else None

    def outlook(self, view: View) -> Outlook | None:
        return self._otherwise.outlook(view) if self.cursor is None else None

    def went_on(self, view: View, uses: Iterable[FirstUse], ran_short: bool) -> None:
        self._otherwise.went_on(view, uses, ran_short)

    def prefetch(self, view: View) -> Prefetch | None:
        cursor = self.cursor
        if cursor is None:
            return self._otherwise.prefetch(view)
        for page in list(cursor.to_evict):
            if view.find(page) is None:
                del cursor.to_evict[page]
        for page in list(cursor.to_drop):
            if view.find(page) is None:
                del cursor.to_drop[page]
        if not (cursor.to_evict or cursor.to_fetch or cursor.to_drop):
            return None
        return Prefetch(
            list(cursor.to_evict),
            list(cursor.to_fetch),
            list(cursor.to_drop.values()),
            cursor.plan.waits_for_evictions,
        )
