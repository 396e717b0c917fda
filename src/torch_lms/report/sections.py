"""The parts of a report. The template takes them as they are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_lms.report.charts import Chart
from torch_lms.report.tables import Table


@dataclass(frozen=True)
class StepSection:
    """One step: its figures, its timeline, its tables.

    Attributes:
        id: unique on the page.
        title: what ran, and where.
        what: how it came about, in one sentence.
        figures: names and values to be read first.
        tables: in the order in which they are shown.
        data: for the page's script.
    """

    id: str
    title: str
    what: str
    figures: Sequence[tuple[str, str]]
    tables: Sequence[Table]
    data: dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A part with a heading: notes, charts, tables."""

    id: str
    title: str
    notes: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class PictureSection:
    """Result pictures: each with its name, and its bytes in base64."""

    pictures: Sequence[tuple[str, str]] = field(default=())
