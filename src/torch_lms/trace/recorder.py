"""Writes a step down while it happens."""

from collections.abc import Iterable
from typing import NamedTuple

from torch_lms.trace.record import Trace, TracedOp, TracedPage, Work


class Living(NamedTuple):
    """A page that lives."""

    id: int
    nbytes: int
    unpageable: str = ""


class Recorder:
    """One step. The first page that it hears of is page 0 of the trace, and so on.

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
        self._began = 0.0
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
        now: float,
        is_repeatable: bool = False,
        work: Work | None = None,
    ) -> None:
        """An operation begins on ``pages`` (ids); ``now`` is in seconds of a clock that stands still while copies are
        waited for.
        """
        self._time(now)
        self._began = now
        numbers = tuple(self.numbers[page] for page in pages)
        self._ops.append(TracedOp(name, numbers, (), (), new_bytes, 0.0, is_repeatable, work))

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
        """The operation that runs wrote ``pages``."""
        numbers = tuple(self.numbers[page] for page in pages if page in self.numbers)
        if numbers and self._ops:
            self._ops[-1] = self._ops[-1]._replace(writes=(*self._ops[-1].writes, *numbers))

    def died(self, page: int) -> None:
        """Its storage is gone."""
        number = self.numbers.pop(page)
        self._pages[number] = self._pages[number]._replace(dead=len(self._ops) - 1)

    def finish(self, now: float) -> Trace:
        """The step ended."""
        self._time(now)
        for page, number in self.numbers.items():
            heir = self._heirs.get(self._births[page], -1) if page in self._births else number
            if heir >= 0 and self._pages[heir].nbytes != self._pages[number].nbytes:
                heir = -1
            self._pages[number] = self._pages[number]._replace(dead=len(self._ops), becomes=heir)
        return Trace(tuple(self._pages), tuple(self._ops))

    def _add(self, page: Living, born: int) -> None:
        self.numbers[page.id] = len(self._pages)
        self._pages.append(TracedPage(page.nbytes, born, len(self._ops), page.unpageable))

    def _time(self, now: float) -> None:
        if self._ops:
            self._ops[-1] = self._ops[-1]._replace(seconds=now - self._began)
