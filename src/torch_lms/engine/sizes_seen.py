"""Steps of the same operations whose pages have other sizes each time: batches of other lengths, say (N15)."""

from collections.abc import Sequence
from math import log2

_SHARES = 8
"""Steps need about as much if they are in the same of so many parts of an octave."""

_MIN_GROWTH = 1 / 8
"""By so much pages whose sizes change may at least grow until another plan is needed."""

_MAX_GROWTH = 1.0
"""And by no more."""

_GROWTH_OF_DEMAND = 1 / 16
"""In between, by what makes the step need so much more: where most pages are always the same, others may grow a lot."""


def likeness(structure: int, demand_bytes: int) -> int:
    """A number that is equal for steps of one structure that need about as much.

    Args:
        structure: see ``Trace.structure``.
        demand_bytes: the most bytes of pages that are alive at once.
    """
    return hash((structure, int(_SHARES * log2(max(1, demand_bytes)))))


class SizesSeen:
    """The sizes of pages in steps that are alike, as ``Trace.sizes`` has them.

    Attributes:
        steps: how many were seen.
        most: for each page, the most that any of them had.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.most: tuple[int, ...] = ()
        self._least: tuple[int, ...] = ()

    def add(self, sizes: Sequence[int]) -> None:
        """A step had these."""
        if not self.steps:
            self._least = self.most = tuple(sizes)
        self.steps += 1
        self._least = tuple(map(min, self._least, sizes))
        self.most = tuple(map(max, self.most, sizes))

    def with_room(self, demand_bytes: int, limit: int) -> tuple[int, ...]:
        """Sizes for which to make a plan, so that it holds for larger steps, too: those that changed may grow. But what
        fits still fits.

        Args:
            demand_bytes: the most that is alive at once in a step of ``most``.
            limit: bytes that pages may occupy.
        """
        both = list(zip(self._least, self.most, strict=True))
        changing = max(1, sum(most for least, most in both if least != most))
        growth = min(_MAX_GROWTH, max(_MIN_GROWTH, _GROWTH_OF_DEMAND * demand_bytes / changing))
        if demand_bytes <= limit:
            growth = min(growth, (limit - demand_bytes) / min(changing, demand_bytes))
        return tuple(most if least == most else int(most * (1 + growth)) for least, most in both)
