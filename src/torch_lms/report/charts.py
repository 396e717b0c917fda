"""Charts of a report: what the page's script draws, and the same as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_lms.report.tables import Table
from torch_lms.units import format_bytes, format_seconds

_FORMS = {"bytes": format_bytes, "seconds": format_seconds, "share": "{:.1%}".format}


def formatted(value: float | None, unit: str) -> str:
    """``value`` for people; "-" for None."""
    if value is None:
        return "-"
    form = _FORMS.get(unit)
    return form(value) if form is not None else f"{value:.4g}"


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        name: in the legend.
        values: one for each x; None where there is none.
        low, high: of a band around it, if it has one.
    """

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True)
class Chart:
    """Lines over numbers.

    Attributes:
        id: unique on the page.
        title: a heading.
        x_name: what the numbers are.
        xs: the numbers, rising.
        unit: of the values: "bytes", "seconds", "share" or what is counted, as in "voxels/s".
        series: the lines.
        failures: points that gave no value: x, whose, and why.
        has_points: whether each value is marked, as where they are few.
    """

    id: str
    title: str
    x_name: str
    xs: Sequence[float]
    unit: str
    series: Sequence[Series]
    failures: Sequence[tuple[float, str, str]] = field(default=())
    has_points: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(value is not None for series in self.series for value in series.values)

    @property
    def plain(self) -> Mapping[str, Any]:
        """For the page's script."""
        return {
            "id": self.id,
            "title": self.title,
            "x": {"name": self.x_name, "values": list(self.xs)},
            "unit": self.unit,
            "series": [
                {"name": s.name, "values": list(s.values), "low": list(s.low), "high": list(s.high)}
                for s in self.series
            ],
            "failures": [list(failure) for failure in self.failures],
            "points": self.has_points,
        }

    @property
    def table(self) -> Table:
        """The same in figures."""
        head = [self.x_name, *(series.name for series in self.series)]
        failed = {(x, whose): why for x, whose, why in self.failures}
        rows = []
        for at, x in enumerate(self.xs):
            cells = []
            for series in self.series:
                value = series.values[at]
                cells.append(failed.get((x, series.name), "-") if value is None else formatted(value, self.unit))
            rows.append([f"{x:g}", *cells])
        return Table(f"{self.title}, in figures", head, rows, is_open=False)
