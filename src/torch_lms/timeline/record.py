"""The records that a timeline is made of."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Lane(Enum):
    """Who was busy. Lanes work side by side."""

    COMPUTE = "compute"
    """The program: its operations, and when it waited for copies."""

    OUT = "out"
    """From the device to the next tier."""

    IN = "in"
    """From the next tier to the device."""

    DISK = "disk"
    """Between host memory and the disk, where there is host memory between."""

    COLLECTIVE = "collective"
    """Between the ranks: only simulated; where steps are recorded it is the program's."""


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        lane: who was busy.
        name: an operation as in "aten::mm", "stall", "evict", "fetch", "recompute" or "all-reduce".
        start_s, end_s: seconds of one clock.
        nbytes: that were moved; 0 for operations.
        page: that was moved; -1 for operations.
    """

    lane: Lane
    name: str
    start_s: float
    end_s: float
    nbytes: int = 0
    page: int = -1


class Level(NamedTuple):
    """Bytes of pages in each tier from then on."""

    at_s: float
    resident: int
    host: int
    disk: int


@dataclass(frozen=True)
class Timeline:
    """One step.

    Attributes:
        spans: in each lane in the order in which they ended.
        levels: in order of time.
    """

    spans: tuple[Span, ...]
    levels: tuple[Level, ...]
