"""Where a step that has left its plan is like that again."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from torch_lms.policy.planned import PlanCursor
from torch_lms.residency import PageId

_ENOUGH = 3
"""Operations in a row that are the plan's. One or two may be so by chance."""

_NEAR = 32
"""If the plan has no more operations in between, one on a page that outlives steps, as a weight, is enough."""

_NEXT = 2
"""The same for one on any page whose number is known."""

_MAX_PATHS = 16
"""Places in the plan that are tried at a time; the first of them are likelier."""


@dataclass(slots=True)
class _Path:
    """Operations of the plan that the last ones of the step were like.

    Attributes:
        position: of the last of them.
        reach: it is enough if no more operations were left out.
        numbers: in the plan, of pages that had others before, or none.
        length: how many there are.
        created: how many pages the last one created so far.
    """

    position: int
    reach: int
    numbers: dict[PageId, int]
    length: int = 1
    created: int = 0


class Rejoining:
    """Follows a step from where it has left its plan until it is like the plan again: it did something else meanwhile,
    or left something out. To go on in the plan, some operations in a row have to be the plan's, the first on a page
    whose number is known, as that of a weight.

    Args:
        cursor: has diverged.
    """

    def __init__(self, cursor: PlanCursor) -> None:
        self.cursor = cursor
        self._paths: list[_Path] = []

    def op_begins(self, name: str, pages: tuple[PageId, ...]) -> bool:
        """Whether the step is like the plan again, up to this operation. Then the cursor is there."""
        paths = [path for path in self._paths if self._goes_on(path, name, pages)]
        begun = {path.position for path in paths}
        paths += [path for path in self._beginnings(name, pages) if path.position not in begun]
        self._paths = paths[:_MAX_PATHS]
        for path in self._paths:
            if path.length >= _ENOUGH or path.position - self.cursor.position <= path.reach:
                self.cursor.rejoin(path.position, path.numbers)
                return True
        return False

    def found(self, page: PageId, nbytes: int) -> None:
        """See ``PlanCursor``."""
        self.cursor.found(page, nbytes)

    def created(self, page: PageId, nbytes: int) -> None:
        """The operation that runs, or ran last, created ``page``."""
        self.cursor.created(page, nbytes)
        self._paths = [path for path in self._paths if self._creates(path, page)]

    def died(self, page: PageId) -> None:
        """The storage of ``page`` is gone."""
        self.cursor.died(page)
        for path in self._paths:
            path.numbers.pop(page, None)

    def _beginnings(self, name: str, pages: tuple[PageId, ...]) -> Iterator[_Path]:
        """Where in the plan such an operation is yet to come, on these pages: the next first."""
        cursor = self.cursor
        numbers = [number for page in pages if (number := cursor.number_of(page)) is not None]
        if not numbers:
            return
        known = min(numbers, key=lambda number: cursor.plan.trace.pages[number].born)
        reach = _NEAR if cursor.plan.trace.pages[known].born < 0 else _NEXT
        uses = cursor.plan.trace.uses[known]
        start = bisect_right(uses, cursor.position)
        for position in islice(uses, start, start + _MAX_PATHS):
            path = _Path(position, reach, {})
            if self._is_like(path, name, pages):
                yield path

    def _goes_on(self, path: _Path, name: str, pages: tuple[PageId, ...]) -> bool:
        """Whether this operation is the next on ``path``."""
        path.position += 1
        path.length += 1
        path.created = 0
        return self._is_like(path, name, pages)

    def _is_like(self, path: _Path, name: str, pages: tuple[PageId, ...]) -> bool:
        """Whether the plan has such an operation at the end of ``path``. Then the pages have its numbers."""
        ops = self.cursor.plan.trace.ops
        if path.position >= len(ops):
            return False
        op = ops[path.position]
        if op.name != name or len(op.pages) != len(pages):
            return False
        return all(self._is(path, page, number) for page, number in zip(pages, op.pages, strict=True))

    def _creates(self, path: _Path, page: PageId) -> bool:
        """Whether the plan has the operation at the end of ``path`` create such a page next."""
        creates = self.cursor.plan.trace.ops[path.position].creates
        path.created += 1
        return path.created <= len(creates) and self._is(path, page, creates[path.created - 1])

    def _is(self, path: _Path, page: PageId, number: int) -> bool:
        known = path.numbers.get(page, self.cursor.number_of(page))
        if known != number and number not in path.numbers.values() and self.cursor.may_be(page, number, path.position):
            known = path.numbers[page] = number
        return known == number
