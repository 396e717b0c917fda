"""The records that a timeline is made of."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple


class Lane(Enum):
    """Something that can be busy. Lanes work side by side."""

    COMPUTE = "compute"
    """The program: its operations, and its waits for copies."""

    D2H = "out"
    """Copies from the device to the next tier."""

    H2D = "in"
    """Copies from the next tier to the device."""

    DISK = "disk"
    """Copies between host memory and the disk, where there is host memory between."""

    PLANNING = "planning"
    """A plan is being made, beside the program. Only where steps are recorded."""

    COLLECTIVE = "collective"
    """The exchange between ranks. It is only simulated; where steps are recorded, it is the program's."""


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        lane: who was busy.
        name: an operation as in "aten::mm", "stall", "evict", "fetch", "recompute", "plan" or "all-reduce".
        start_s, end_s: seconds of one clock.
        nbytes: the bytes that were moved; 0 for operations.
        page: the page that was moved, or that a stall waited for; -1 for operations, and where it is not known.
    """

    lane: Lane
    name: str
    start_s: float
    end_s: float
    nbytes: int = 0
    page: int = -1


class Level(NamedTuple):
    """The bytes of pages in each tier, from a moment on."""

    at_s: float
    resident: int
    host: int
    disk: int


class Life(NamedTuple):
    """A page, from its birth to its death.

    Attributes:
        page: the page.
        nbytes: its bytes.
        made_by: the operation that created it; "" if it lived before the step.
        born_at: the number of that operation in the step, -1 before, and its place among those born there. Equal in
            steps alike, on whatever machine.
        born_s, dead_s: when; None if it lived before the step, or outlived it.
        uses_s: when each operation began that used or created it.
    """

    page: int
    nbytes: int
    made_by: str
    born_at: tuple[int, int]
    born_s: float | None
    dead_s: float | None
    uses_s: tuple[float, ...]


@dataclass(frozen=True)
class Timeline:
    """What was done in one step, and when.

    Attributes:
        spans: in each lane in the order in which they ended.
        levels: in order of time.
        lives: of all pages that lived during the step, those that lived before it first; then as they were born.
        policy: the one in force when the step ended; "" where that is not known.
    """

    spans: tuple[Span, ...]
    levels: tuple[Level, ...]
    lives: tuple[Life, ...] = ()
    policy: str = ""

    def beside(self, others: Iterable[Span]) -> "Timeline":
        """The same, with those of ``others`` that were going on meanwhile; of each, the part that was."""
        if not self.spans:
            return self
        start_s = min(span.start_s for span in self.spans)
        end_s = max(span.end_s for span in self.spans)
        parts = (span._replace(start_s=max(start_s, span.start_s), end_s=min(end_s, span.end_s)) for span in others)
        return replace(self, spans=(*self.spans, *(part for part in parts if part.start_s < part.end_s)))
