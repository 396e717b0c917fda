"""Bytes over the limit at each operation, while a plan is made."""

import numpy as np
import numpy.typing as npt

from torch_lms.planner.gaps import Gap, Span, gaps_of
from torch_lms.trace import Trace, demand_curve


class Room:
    """Starts with everything resident.

    Attributes:
        excess: for each operation, bytes on the device beyond what may be there; the limit, or, where the
            operation's own pages exceed that (and pages that may not leave), those.
    """

    def __init__(self, trace: Trace, limit: int) -> None:
        alive = np.array(demand_curve(trace).nbytes, dtype=np.int64)
        movable = np.zeros_like(alive)
        for gap in gaps_of(trace):
            for first, last in gap.spans:
                movable[first : last + 1] += gap.nbytes
        self.excess = alive - np.maximum(limit, alive - movable)

    def take(self, gap: Gap) -> None:
        """Have the page away during ``gap``."""
        for first, last in gap.spans:
            self.excess[first : last + 1] -= gap.nbytes

    def give_back(self, gap: Gap) -> None:
        """Undo ``take``."""
        for first, last in gap.spans:
            self.excess[first : last + 1] += gap.nbytes

    def has(self, position: int, nbytes: int) -> bool:
        """Whether the limit holds at that operation with ``nbytes`` more; positions go on around the step's end."""
        return bool(self.excess[position % len(self.excess)] + nbytes <= 0)

    def add(self, position: int, nbytes: int) -> None:
        """``nbytes`` more are on the device at that operation."""
        self.excess[position % len(self.excess)] += nbytes

    def holds(self, span: Span, nbytes: int) -> bool:
        """Whether the limit holds at all these operations with ``nbytes`` more."""
        return int(self.excess[span[0] : span[1] + 1].max()) + nbytes <= 0

    def fill(self, span: Span, nbytes: int) -> None:
        """``nbytes`` more are on the device at these operations."""
        self.excess[span[0] : span[1] + 1] += nbytes

    @property
    def worst(self) -> tuple[int, int] | None:
        """The operation with most excess, and how much; None if the limit holds everywhere."""
        if not len(self.excess):
            return None
        position = int(np.argmax(self.excess))
        excess = int(self.excess[position])
        return (position, excess) if excess > 0 else None

    @property
    def operations_over(self) -> npt.NDArray[np.int64]:
        """How many operations before each, and in all, are over the limit."""
        return np.concatenate(([0], np.cumsum(self.excess > 0)))

    def is_needless(self, gap: Gap) -> bool:
        """Whether the limit holds with the page back during ``gap``, which was taken."""
        return all(int(self.excess[first : last + 1].max()) + gap.nbytes <= 0 for first, last in gap.spans)
