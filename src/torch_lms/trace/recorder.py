"""Records a step while it happens."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch_lms.trace.record import Trace, TracedOp, TracedPage, Work, places_of, structure_of

_MAX_GROWTH = 2
"""A page that is more than so many times as large as that of the step before is another."""


class Living(NamedTuple):
    """A page that is alive."""

    id: int
    nbytes: int
    unpageable: str = ""


class Recorder:
    """Records one step. The first page that it hears of is page 0 of the trace, and so on.

    Moments are what one clock says, in whatever form it says it, until the trace is asked for.

    Args:
        living: the pages that are alive when the step begins.
        before: the recorder of the step before. A page that was born there is assumed to be what a page becomes that is
            born at the same place in this step: a gradient, say, that lives until the next step clears it.

    Attributes:
        numbers: the number in the trace of each page that is alive, by its id.
    """

    def __init__(self, living: Iterable[Living], before: "Recorder | None" = None) -> None:
        # Where a page was born: the number of the operation, and its place among those that the operation created.
        self._births: dict[int, tuple[int, int]] = {}  # by id
        self._successors: dict[tuple[int, int], int] = {}  # by place: the page that was born there in the step before
        self.numbers: dict[int, int] = {}
        self._pages: list[TracedPage] = []
        self._ops: list[TracedOp] = []
        self._laps: list[Any] = []
        self._pauses: list[tuple[int, Any, Any]] = []
        for page in living:
            if before is not None and page.id in before._births:
                self._successors[before._births[page.id]] = len(self._pages)
            self._add(page, born=-1)

    def __len__(self) -> int:
        """The number of operations so far."""
        return len(self._ops)

    def begins(
        self,
        name: str,
        pages: Iterable[int],
        new_bytes: int,
        now: Any,
        is_repeatable: bool = False,
        work: Work | None = None,
    ) -> None:
        """Note that an operation begins on ``pages`` (ids)."""
        self._laps.append(now)
        numbers = tuple(self.numbers[page] for page in pages)
        self._ops.append(TracedOp(name, numbers, (), (), new_bytes, 0.0, is_repeatable, work))

    def paused(self, start: Any, end: Any) -> None:
        """Note that the program waited, or was kept busy with what is not its own."""
        self._pauses.append((len(self._laps), start, end))

    def found(self, page: Living) -> None:
        """Note that ``page`` has been there since before the step, though nobody said so."""
        if page.id not in self.numbers:
            self._add(page, born=-1)

    def small(self) -> None:
        """Note an operation that used no page: it counts as one more kernel of the operation before it."""
        if not self._ops:
            return
        op = self._ops[-1]
        if op.work is not None:
            self._ops[-1] = op._replace(work=op.work._replace(launches=op.work.launches + 1))

    def created(self, page: Living) -> None:
        """Note that the operation that runs, or ran last, created ``page``."""
        self._add(page, born=len(self._ops) - 1)
        if not self._ops:
            return
        op = self._ops[-1]
        self._births[page.id] = (len(self._ops) - 1, len(op.creates))
        self._ops[-1] = op._replace(creates=(*op.creates, len(self._pages) - 1))

    def wrote(self, pages: Iterable[int]) -> None:
        """Note that the operation that runs wrote ``pages``. Those that it created count as written anyway."""
        if not self._ops:
            return
        op = self._ops[-1]
        numbers = tuple(self.numbers[page] for page in pages if page in self.numbers)
        written = tuple(number for number in numbers if number not in op.creates)
        if written:
            self._ops[-1] = op._replace(writes=(*op.writes, *written))

    def died(self, page: int) -> None:
        """Note that the storage of ``page`` is gone."""
        number = self.numbers.pop(page)
        self._pages[number] = self._pages[number]._replace(dead=len(self._ops) - 1)

    def finish(self, now: Any) -> None:
        """Note that the step ended."""
        self._laps.append(now)
        for page, number in self.numbers.items():
            successor = number
            if page in self._births:
                successor = self._successors.get(self._births[page], -1)
            self._pages[number] = self._pages[number]._replace(dead=len(self._ops), successor=successor)

    @property
    def signature(self) -> int:
        """A number that is equal for steps of one kind: the same operations on pages of the same sizes."""
        sizes = [page.nbytes for page in self._pages]
        return hash(
            tuple((op.name, *(sizes[p] for p in op.pages), -1, *(sizes[p] for p in op.creates)) for op in self._ops)
        )

    @property
    def structure(self) -> int:
        """See ``Trace.structure``."""
        return structure_of(self._ops, places_of(self._ops))

    @property
    def sizes(self) -> tuple[int, ...]:
        """See ``Trace.sizes``."""
        return tuple(self._pages[page].nbytes for page in places_of(self._ops))

    def trace(self, when: Callable[[Any], float] = float, sizes: Sequence[int] | None = None) -> Trace:
        """The trace of the whole step, which is over.

        Args:
            when: tells seconds from moments.
            sizes: bytes that its pages are to have there, as in ``Trace.sizes``; None for those that they had.
        """
        seconds = [end - start for start, end in pairwise(map(when, self._laps))]
        for lap, start, end in self._pauses:
            if 0 < lap <= len(seconds):
                seconds[lap - 1] -= when(end) - when(start)
        ops = [op._replace(seconds=max(0.0, op_s)) for op, op_s in zip(self._ops, seconds, strict=True)]
        recorded = tuple(page.nbytes for page in self._pages)
        nbytes = list(recorded)
        if sizes is not None:
            for page, given in zip(places_of(ops), sizes, strict=True):
                nbytes[page] = given
            self._give_successors_room(nbytes)
            ops = [_on_pages_of(op, recorded, nbytes) for op in ops]

        def given_size(number: int, page: TracedPage) -> TracedPage:
            has_successor = page.successor >= 0 and nbytes[page.successor] == nbytes[number]
            return page._replace(nbytes=nbytes[number], successor=page.successor if has_successor else -1)

        pages = tuple(given_size(number, page) for number, page in enumerate(self._pages))
        return Trace(pages, tuple(ops), recorded_nbytes=() if sizes is None else recorded)

    def _give_successors_room(self, nbytes: list[int]) -> None:
        """A page that each step makes anew, somewhat larger, is as large as what it becomes in the next step."""
        for number, page in enumerate(self._pages):
            if page.successor < 0:
                continue
            both = nbytes[number], nbytes[page.successor]
            if max(both) <= _MAX_GROWTH * min(both):
                nbytes[number] = nbytes[page.successor] = max(both)

    def _add(self, page: Living, born: int) -> None:
        self.numbers[page.id] = len(self._pages)
        self._pages.append(TracedPage(page.nbytes, born, len(self._ops), page.unpageable))


def _on_pages_of(op: TracedOp, recorded: Sequence[int], nbytes: Sequence[int]) -> TracedOp:
    """``op`` on pages of other sizes than it was recorded with: it takes the longer, the more bytes these have."""
    pages = {*op.pages, *op.creates}
    share = sum(nbytes[page] for page in pages) / max(1, sum(recorded[page] for page in pages))
    more_bytes = sum(nbytes[page] - recorded[page] for page in op.creates)
    return op._replace(new_bytes=op.new_bytes + more_bytes, seconds=op.seconds * share)
