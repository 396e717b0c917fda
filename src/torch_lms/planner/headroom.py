"""How far each operation is over the limit, while a plan is made."""

from collections.abc import Iterable
from copy import copy
from typing import Self

import numpy as np
import numpy.typing as npt

from torch_lms.planner.gaps import Gap, Span, gaps_of
from torch_lms.trace import Trace, demand_curve


class Headroom:
    """The room that is left at each operation of a step. At first every page is on the device.

    Args:
        trace: the step.
        limit: bytes that its pages may occupy on the device.

    Attributes:
        excess: for each operation, the bytes on the device beyond what is allowed; negative where there is room.
            Allowed is the limit. Where the operation's own pages, and those that must stay, exceed the limit, these
            are allowed.
    """

    def __init__(self, trace: Trace, limit: int) -> None:
        alive = np.array(demand_curve(trace).nbytes, dtype=np.int64)
        evictable = np.zeros_like(alive)
        for gap in gaps_of(trace):
            for first, last in gap.spans:
                evictable[first : last + 1] += gap.nbytes
        self.excess = alive - np.maximum(limit, alive - evictable)

    def copy(self) -> Self:
        """One of its own, with as much taken."""
        other = copy(self)
        other.excess = self.excess.copy()
        return other

    def without(self, gaps: Iterable[Gap]) -> Self:
        """The room if the pages of ``gaps`` were away, too."""
        other = self.copy()
        for gap in gaps:
            other.take(gap)
        return other

    def take(self, gap: Gap) -> None:
        """Have the page away during ``gap``."""
        for first, last in gap.spans:
            self.excess[first : last + 1] -= gap.nbytes

    def give_back(self, gap: Gap) -> None:
        """Undo ``take``."""
        for first, last in gap.spans:
            self.excess[first : last + 1] += gap.nbytes

    def fill(self, span: Span, nbytes: int) -> None:
        """Count ``nbytes`` more at all operations of ``span``."""
        self.excess[span[0] : span[1] + 1] += nbytes

    @property
    def worst(self) -> tuple[int, int] | None:
        """The operation most over the limit, and by how many bytes; None if the limit holds everywhere."""
        if not len(self.excess):
            return None
        position = int(np.argmax(self.excess))
        excess = int(self.excess[position])
        return (position, excess) if excess > 0 else None

    @property
    def operations_over(self) -> npt.NDArray[np.int64]:
        """How many operations are over the limit: before each operation, and at the end in all."""
        return np.concatenate(([0], np.cumsum(self.excess > 0)))

    def is_needless(self, gap: Gap) -> bool:
        """Whether the limit would hold if ``gap``, which was taken, were given back."""
        return all(int(self.excess[first : last + 1].max()) + gap.nbytes <= 0 for first, last in gap.spans)
