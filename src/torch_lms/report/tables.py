"""Tables of a report: what charts show, in words and figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Tensor(NamedTuple):
    """A cell that names a tensor, and selects it in the timeline.

    Attributes:
        key: of its life, as the timeline's data have it.
        text: what is read.
    """

    key: str
    text: str


class Bar(NamedTuple):
    """A cell with a bar.

    Attributes:
        share: of the longest bar, from 0 to 1.
        text: what is read.
    """

    share: float
    text: str


Cell: TypeAlias = str | Tensor | Bar


@dataclass(frozen=True)
class Table:
    """A table with a caption, and perhaps a sentence on how to read it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    is_open: bool = True
    """Whether it is shown at once; one that says what a chart shows is folded away."""


def bars(values: Sequence[float | None], texts: Sequence[str]) -> list[Cell]:
    """A cell for each value; "-" where there is none."""
    longest = max((value for value in values if value is not None), default=0.0) or 1.0
    cells: list[Cell] = []
    for value, text in zip(values, texts, strict=True):
        cells.append("-" if value is None else Bar(value / longest, text))
    return cells
