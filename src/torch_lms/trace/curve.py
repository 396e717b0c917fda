"""How much a step would hold at once without a limit, operation by operation."""

from dataclasses import dataclass

from torch_lms.trace.record import Trace


@dataclass(frozen=True, slots=True)
class Curve:
    """The bytes that are alive at each operation.

    Attributes:
        nbytes: for each operation, the bytes alive while it ran, with those that it created.
        peak: the operation at which most was alive.
    """

    nbytes: tuple[int, ...]
    peak: int

    @property
    def demand_bytes(self) -> int:
        """The most bytes alive at once."""
        return self.nbytes[self.peak] if self.nbytes else 0


def demand_curve(trace: Trace) -> Curve:
    """The curve of ``trace``."""
    change = [0] * (len(trace.ops) + 2)
    for page in trace.pages:
        change[max(0, page.born)] += page.nbytes
        change[min(page.dead, len(trace.ops)) + 1] -= page.nbytes
    alive = []
    held = 0
    for number in range(len(trace.ops)):
        held += change[number]
        alive.append(held)
    peak = max(range(len(alive)), key=alive.__getitem__, default=0)
    return Curve(tuple(alive), peak)
