"""What the files of a report hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch_lms.report.timeline_file import TimelineFile

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """A step in time: recorded, simulated, or a trace laid out as it would be without moves.

    Attributes:
        name: of the file.
        file: its timeline.
        has_moves: False for a trace.
    """

    name: str
    file: TimelineFile
    has_moves: bool = True


@dataclass(frozen=True)
class Bench:
    """Results of ``torch-lms bench``: the file's header, and its trials."""

    name: str
    header: Row
    trials: Sequence[Row]


@dataclass(frozen=True)
class Training:
    """A ``log.jsonl`` of ``torch-lms train``: its lines."""

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Plans:
    """Forecasts, as ``torch-lms plan --json`` writes them."""

    name: str
    forecasts: Sequence[Row]


@dataclass(frozen=True)
class Result:
    """What a command wrote by ``--json`` or ``--stats``: figures by name."""

    name: str
    figures: Row


@dataclass(frozen=True)
class Demo:
    """What ``torch-lms demo --json`` wrote."""

    name: str
    found: Row


@dataclass(frozen=True)
class Picture:
    """A PNG file."""

    name: str
    png: bytes


Content: TypeAlias = Step | Bench | Training | Plans | Result | Demo | Picture


@dataclass
class Contents:
    """All that was read, and in one sentence each what could not be, or is not whole."""

    found: list[Content] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    has_unread: bool = False
