"""The records that a timeline is made of."""

from collections.abc import Iterable
from dataclasses import dataclass
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
        page: the page that was moved; -1 for operations.
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


@dataclass(frozen=True)
class Timeline:
    """What was done in one step, and when.

    Attributes:
        spans: in each lane in the order in which they ended.
        levels: in order of time.
    """

    spans: tuple[Span, ...]
    levels: tuple[Level, ...]

    def beside(self, others: Iterable[Span]) -> "Timeline":
        """The same, with those of ``others`` that were going on meanwhile; of each, the part that was."""
        if not self.spans:
            return self
        start_s = min(span.start_s for span in self.spans)
        end_s = max(span.end_s for span in self.spans)
        parts = (span._replace(start_s=max(start_s, span.start_s), end_s=min(end_s, span.end_s)) for span in others)
        return Timeline((*self.spans, *(part for part in parts if part.start_s < part.end_s)), self.levels)
