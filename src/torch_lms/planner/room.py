"""Bytes over the limit at each operation, while a plan is made."""

import numpy as np

from torch_lms.planner.gaps import Gap, gaps_of
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

    @property
    def worst(self) -> tuple[int, int] | None:
        """The operation with most excess, and how much; None if the limit holds everywhere."""
        if not len(self.excess):
            return None
        position = int(np.argmax(self.excess))
        excess = int(self.excess[position])
        return (position, excess) if excess > 0 else None

    def helped(self, gap: Gap) -> int:
        """Operations over the limit that ``gap`` would bring down."""
        return sum(int(np.count_nonzero(self.excess[first : last + 1] > 0)) for first, last in gap.spans)

    def is_needless(self, gap: Gap) -> bool:
        """Whether the limit holds with the page back during ``gap``, which was taken."""
        return all(int(self.excess[first : last + 1].max()) + gap.nbytes <= 0 for first, last in gap.spans)
