"""A plan for one kind of step, and how far the step that runs has followed it (N15)."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch_lms.policy.base import Recipe
from torch_lms.residency import PageId
from torch_lms.trace import Trace


class Remade(NamedTuple):
    """A page that is dropped and made again; pages and operations are named by their numbers in the trace.

    Attributes:
        page: the page.
        after: the operation after which it is dropped.
        before: the operation that needs it again.
        ops: those that make it, in order.
        inputs: pages that these take, as they are before ``before``.
        extra_bytes: of what is made on the way.
    """

    page: int
    after: int
    before: int
    ops: tuple[int, ...]
    inputs: tuple[int, ...]
    extra_bytes: int


@dataclass(frozen=True)
class Plan:
    """Which pages of a step are away, and when.

    Attributes:
        trace: the step; pages are named by their numbers there.
        limit: bytes that it keeps to.
        leaves: for each operation, the pages that may leave after it, because the plan has them away until their next
            use.
        comes: for each operation, the pages that may start to come back when it begins, the first needed first.
        away: pages that are away when the step begins.
        remade: pages that do not leave but are made again.
        known: numbers of pages that live from step to step, by their id.
    """

    trace: Trace
    limit: int
    leaves: tuple[tuple[int, ...], ...]
    comes: tuple[tuple[int, ...], ...]
    away: frozenset[int]
    known: Mapping[PageId, int]
    remade: tuple[Remade, ...] = ()

    @cached_property
    def repeated(self) -> frozenset[int]:
        """The operations that may be."""
        return frozenset(op for remade in self.remade for op in remade.ops)

    @cached_property
    def drops(self) -> Mapping[int, tuple[Remade, ...]]:
        """``remade`` by the operation after which the page is dropped."""
        return _by(self.remade, lambda remade: remade.after)

    @cached_property
    def makes(self) -> Mapping[int, tuple[Remade, ...]]:
        """``remade`` by the operation that needs the page again."""
        return _by(self.remade, lambda remade: remade.before)


def _by(remade: Iterable[Remade], key: Callable[[Remade], int]) -> Mapping[int, tuple[Remade, ...]]:
    found: dict[int, tuple[Remade, ...]] = {}
    for one in remade:
        found[key(one)] = (*found.get(key(one), ()), one)
    return found


class Guide:
    """One step that may turn out to be the plan's.

    Pages that the plan knows are bound to their numbers at once, the others when an operation of the plan names them.

    Args:
        plan: to follow.
        living: ids and bytes of the pages when the step begins.

    Attributes:
        due: pages that the plan has away now, those longest due first. A dict for its order, as the next two.
        leaving: those among them that may not have left yet.
        coming: pages that are to come back, the first needed first.
        dropping: pages that the plan has dropped now, and that may not be yet.
        recipes: of all pages that the plan has dropped now, those too that were made again to make others.
        position: of the operation that runs, or ran last; -1 before the first.
        is_lost: whether the step has left the plan.
    """

    def __init__(self, plan: Plan, living: Iterable[tuple[PageId, int]]) -> None:
        self.plan = plan
        self.is_lost = False
        self.due: dict[PageId, None] = {}
        self.leaving: dict[PageId, None] = {}
        self.coming: dict[PageId, None] = {}
        self.dropping: dict[PageId, Recipe] = {}
        self.recipes: dict[PageId, Recipe] = {}
        self.position = -1
        self._created = 0
        self._numbers: dict[PageId, int] = {}
        self._ids: dict[int, PageId] = {}
        self._nbytes: dict[PageId, int] = {}
        for page, nbytes in living:
            self._nbytes[page] = nbytes
            number = plan.known.get(page)
            if number is not None and plan.trace.pages[number].nbytes == nbytes:
                self._bind(page, number)

    @property
    def is_done(self) -> bool:
        """Whether the step has been the plan's, from its first operation to its last."""
        return not self.is_lost and self.position == len(self.plan.trace.ops) - 1

    @property
    def may_be_repeated(self) -> bool:
        """Whether the operation that runs makes something that is to be dropped."""
        return not self.is_lost and self.position in self.plan.repeated

    def begins(self, name: str, pages: tuple[PageId, ...]) -> None:
        """An operation begins."""
        if self.is_lost:
            return
        self._end()
        self.position += 1
        self._created = 0
        ops = self.plan.trace.ops
        if self.position >= len(ops) or ops[self.position].name != name:
            self.is_lost = True
            return
        expected = ops[self.position].pages
        self.is_lost = len(expected) != len(pages) or not all(map(self._is, pages, expected))
        for page in pages:
            self._forget(page)
            self.recipes.pop(page, None)
        for remade in self.plan.makes.get(self.position, ()):
            for number in remade.inputs:
                if number in self._ids:
                    self._forget(self._ids[number])
        for number in self.plan.comes[self.position]:
            if number in self._ids:
                self._forget(self._ids[number])
                self.coming[self._ids[number]] = None

    def created(self, page: PageId, nbytes: int) -> None:
        """By the operation that runs."""
        self._nbytes[page] = nbytes
        if self.is_lost or self.position < 0:
            return
        creates = self.plan.trace.ops[self.position].creates
        if self._created >= len(creates) or self.plan.trace.pages[creates[self._created]].nbytes != nbytes:
            self.is_lost = True
            return
        self._bind(page, creates[self._created])
        self._created += 1

    def died(self, page: PageId) -> None:
        """Its storage is gone."""
        self._nbytes.pop(page, None)
        self._forget(page)
        self.recipes.pop(page, None)
        number = self._numbers.pop(page, None)
        if number is not None:
            del self._ids[number]

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
        heir = trace.pages[number].becomes if trace.pages[number].dead == len(trace.ops) else -1
        again = trace.uses[heir] if heir >= 0 else ()
        return len(trace.ops) - self.position + (again[0] if again else len(trace.ops))

    def _end(self) -> None:
        """The operation before has ended: what may leave after it is due."""
        if self.position >= 0:
            for number in self.plan.leaves[self.position]:
                if number in self._ids:
                    self._is_due(self._ids[number])
            for remade in self.plan.drops.get(self.position, ()):
                inputs = tuple(self._ids[number] for number in remade.inputs if number in self._ids)
                if remade.page in self._ids and len(inputs) == len(remade.inputs):
                    page = self._ids[remade.page]
                    self.due[page] = None
                    self.dropping[page] = self.recipes[page] = Recipe(page, inputs, remade.extra_bytes, remade.ops)

    def _is_due(self, page: PageId) -> None:
        self.due[page] = self.leaving[page] = None

    def _forget(self, page: PageId) -> None:
        for pages in (self.due, self.leaving, self.coming, self.dropping):
            pages.pop(page, None)

    def _is(self, page: PageId, number: int) -> bool:
        if page in self._numbers or number in self._ids:
            return self._numbers.get(page) == number
        if self._nbytes.get(page) != self.plan.trace.pages[number].nbytes:
            return False
        self._bind(page, number)
        return True

    def _bind(self, page: PageId, number: int) -> None:
        self._numbers[page] = number
        self._ids[number] = page
        if self.position < 0 and number in self.plan.away:
            self._is_due(page)
