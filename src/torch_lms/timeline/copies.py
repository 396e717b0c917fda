"""Copies between tiers that ended."""

from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Any, NamedTuple

from torch_lms.timeline.record import Lane, Span


class Copies(NamedTuple):
    """A column for each attribute of a ``Span``: thousands of objects a step would keep the garbage collector busy."""

    lanes: list[Lane]
    names: list[str]
    starts_s: list[float]
    ends_s: list[float]
    nbytes: list[int]
    pages: list[int]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> "Copies":
        """Those."""
        columns = [list(column) for column in zip(*spans, strict=True)]
        return cls(*columns) if columns else cls([], [], [], [], [], [])

    @classmethod
    def moved(
        cls, are_up: list[bool], starts_s: list[float], ends_s: list[float], nbytes: list[int], pages: list[int]
    ) -> "Copies":
        """Those of pages, which went up or down."""
        lanes = [Lane.H2D if is_up else Lane.D2H for is_up in are_up]
        names = ["fetch" if is_up else "evict" for is_up in are_up]
        return cls(lanes, names, starts_s, ends_s, nbytes, pages)

    def beside(self, others: "Copies") -> "Copies":
        """These and ``others``, in the order in which they ended."""
        columns = [ours + theirs for ours, theirs in zip(self._columns(), others._columns(), strict=True)]
        order = sorted(range(len(columns[0])), key=(self.ends_s + others.ends_s).__getitem__)
        return Copies(*([column[place] for place in order] for column in columns))

    def times(self, lane: Lane) -> Iterator[tuple[float, float, int]]:
        """When those in ``lane`` began and ended, and their bytes."""
        for its_lane, start_s, end_s, nbytes in zip(self.lanes, self.starts_s, self.ends_s, self.nbytes, strict=True):
            if its_lane is lane:
                yield start_s, end_s, nbytes

    def spans(self) -> Iterator[Span]:
        """For a timeline."""
        return starmap(Span, zip(*self, strict=True))

    def _columns(self) -> tuple[list[Any], ...]:
        return tuple(self)
