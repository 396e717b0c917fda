"""Writes a step down while it happens."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from torch_lms.trace.record import Trace, TracedOp, TracedPage, Work


class Living(NamedTuple):
    """A page that lives."""

    id: int
    nbytes: int
    unpageable: str = ""


class Recorder:
    """One step. The first page that it hears of is page 0 of the trace, and so on.

    Moments are what one clock says, in whatever form it says it, until the trace is asked for.

    Args:
        living: the pages when the step begins.
        before: who wrote down the step before. A page that was born there is taken for the heir of whatever is born at
            the same place in this step: a gradient, say, that lives until the next step clears it.

    Attributes:
        numbers: of each page that lives, by its id, the number in the trace.
    """

    def __init__(self, living: Iterable[Living], before: "Recorder | None" = None) -> None:
        self._births: dict[int, tuple[int, int]] = {}
        self._heirs: dict[tuple[int, int], int] = {}
        self.numbers: dict[int, int] = {}
        self._pages: list[TracedPage] = []
        self._ops: list[TracedOp] = []
        self._laps: list[Any] = []
        self._pauses: list[tuple[int, Any, Any]] = []
        for page in living:
            if before is not None and page.id in before._births:
                self._heirs[before._births[page.id]] = len(self._pages)
            self._add(page, born=-1)

    def __len__(self) -> int:
        """Operations so far."""
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
        """An operation begins on ``pages`` (ids)."""
        self._laps.append(now)
        numbers = tuple(self.numbers[page] for page in pages)
        self._ops.append(TracedOp(name, numbers, (), (), new_bytes, 0.0, is_repeatable, work))

    def paused(self, start: Any, end: Any) -> None:
        """The program waited, or was kept busy with what is not its own."""
        self._pauses.append((len(self._laps), start, end))

    def found(self, page: Living) -> None:
        """It has been there since before the step, though nobody said so."""
        if page.id not in self.numbers:
            self._add(page, born=-1)

    def small(self) -> None:
        """An operation that used no page: one more kernel of the operation before it."""
        if self._ops and (work := self._ops[-1].work) is not None:
            self._ops[-1] = self._ops[-1]._replace(work=work._replace(launches=work.launches + 1))

    def created(self, page: Living) -> None:
        """By the operation that runs, or ran last."""
        self._add(page, born=len(self._ops) - 1)
        if self._ops:
            self._births[page.id] = len(self._ops) - 1, len(self._ops[-1].creates)
            self._ops[-1] = self._ops[-1]._replace(creates=(*self._ops[-1].creates, len(self._pages) - 1))

    def wrote(self, pages: Iterable[int]) -> None:
        """The operation that runs wrote ``pages``. What it made, it wrote anyway."""
        if not self._ops:
            return
        op = self._ops[-1]
        numbers = tuple(self.numbers[page] for page in pages if page in self.numbers)
        if written := tuple(number for number in numbers if number not in op.creates):
            self._ops[-1] = op._replace(writes=(*op.writes, *written))

    def died(self, page: int) -> None:
        """Its storage is gone."""
        number = self.numbers.pop(page)
        self._pages[number] = self._pages[number]._replace(dead=len(self._ops) - 1)

    def finish(self, now: Any) -> None:
        """The step ended."""
        self._laps.append(now)
        for page, number in self.numbers.items():
            heir = self._heirs.get(self._births[page], -1) if page in self._births else number
            if heir >= 0 and self._pages[heir].nbytes != self._pages[number].nbytes:
                heir = -1
            self._pages[number] = self._pages[number]._replace(dead=len(self._ops), becomes=heir)

    @property
    def signature(self) -> int:
        """Equal for steps of one kind: the same operations on pages of the same sizes."""
        sizes = [page.nbytes for page in self._pages]
        return hash(
            tuple((op.name, *(sizes[p] for p in op.pages), -1, *(sizes[p] for p in op.creates)) for op in self._ops)
        )

    def trace(self, when: Callable[[Any], float] = float) -> Trace:
        """Of the whole step, which is over; ``when`` tells seconds from moments."""
        seconds = [end - start for start, end in pairwise(map(when, self._laps))]
        for lap, start, end in self._pauses:
            if 0 < lap <= len(seconds):
                seconds[lap - 1] -= when(end) - when(start)
        ops = (op._replace(seconds=max(0.0, its)) for op, its in zip(self._ops, seconds, strict=True))
        return Trace(tuple(self._pages), tuple(ops))

    def _add(self, page: Living, born: int) -> None:
        self.numbers[page.id] = len(self._pages)
        self._pages.append(TracedPage(page.nbytes, born, len(self._ops), page.unpageable))
