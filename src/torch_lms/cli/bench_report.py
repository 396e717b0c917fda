"""Shows trials of ``torch-lms bench`` to people: a line each while they are made, and tables at the end."""

import textwrap
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from torch_lms.bench.campaign import Bench
from torch_lms.bench.search import Found
from torch_lms.bench.trial import Point, Trial
from torch_lms.bench.ways import NONE
from torch_lms.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

_MAX_REASON = 240
"""Characters of a reason that are shown. The file has all that is known."""


class Progress:
    """Says how it goes, and how long it may still take.

    Args:
        console: where people read.
        total: how many trials there will be; None: that is not known.
        known: trials that were made before.
    """

    def __init__(self, console: "Console", total: int | None, known: Sequence[Trial]) -> None:
        self._console = console
        self._total = total
        self._ended = 0
        self._taken_s: list[float] = []
        self._began_s = time.monotonic()
        self._status = console.status("")
        self._doing = ""
        self._steps = 0

    def __enter__(self) -> Self:
        self._status.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.__exit__(kind, error, trace)

    def begins(self, way: str, point: Point) -> None:
        """See ``Watcher``."""
        self._doing = f"{way}, {_point(point)}"
        self._steps = 0
        self._show()

    def stepped(self) -> None:
        """See ``Watcher``."""
        self._steps += 1
        self._show()

    def ended(self, trial: Trial, seconds: float, is_known: bool) -> None:
        """See ``Watcher``."""
        self._ended += 1
        if not is_known:
            self._taken_s.append(seconds)
        known = " (known)" if is_known else ""
        line = f"{self._number()} {trial.way}, {_point(trial.point)}: {_in_short(trial)}{known}{self._left()}"
        self._console.print(line, markup=False, soft_wrap=True)

    def _show(self) -> None:
        step = f", step {self._steps}" if self._steps else ""
        self._status.update(f"{self._number(1)} {self._doing}{step}{self._left()}")

    def _number(self, more: int = 0) -> str:
        of = "" if self._total is None else f" of {self._total}"
        return f"{self._ended + more}{of}"

    def _left(self) -> str:
        if self._total is None or not self._taken_s or self._ended >= self._total:
            return ""
        mean_s = sum(self._taken_s) / len(self._taken_s)
        return f"; about {format_seconds(mean_s * (self._total - self._ended))} left"


def show_trials(console: "Console", bench: Bench, trials: Sequence[Trial]) -> None:
    """Print a table with a row a trial."""
    from rich.table import Table

    table = Table(title=_title(bench), title_justify="left", box=None, pad_edge=False)
    for label in ("at", "way", "step", "quartiles", "overhead", "a second", "out", "in", "waits"):
        table.add_column(label, no_wrap=True)
    for label in ("device", "host", "disk"):
        table.add_column(f"{label} peak", no_wrap=True)
    for trial in trials:
        table.add_row(_point(trial.point), trial.way, *_cells(trial))
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)
    if names := {name for trial in trials for name in trial.inexact}:
        console.print(
            f"NOT EXACT: pieces of {', '.join(sorted(names))} may be rounded in another way",
            markup=False,
            soft_wrap=True,
        )


def show_found(console: "Console", what: str, found: Sequence[Found]) -> None:
    """Print the largest of each way, and the forecast beside it."""
    from rich.table import Table
    from rich.text import Text

    base = next((one.largest for one in found if one.way == NONE), 0)
    table = Table(title=f"largest {what} that trains", title_justify="left", box=None, pad_edge=False)
    for label in ("way", "forecast", "by running", "times none", "fails at", "trials", "why it fails"):
        table.add_column(label)
    for one in found:
        table.add_row(
            one.way,
            str(one.expected or "none"),
            str(one.largest or "none"),
            f"{one.largest / base:.2f}" if base and one.largest else "",
            "" if one.fails is None else str(one.fails),
            str(one.trials),
            Text(_shortened(one.reason)),  # brackets in it are no markup
        )
    console.print(table)


def _title(bench: Bench) -> str:
    ranks = f"{bench.setting.gpus} ranks " if bench.setting.gpus > 1 else ""
    parts = [bench.name, f"{ranks}on {bench.device}"]
    if bench.card_bytes is not None:
        parts.append(f"as a card of {format_bytes(bench.card_bytes)}")
    if bench.limit is not None:
        parts.append(f"limit {bench.limit}")
    return ", ".join(parts)


def _point(point: Point) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.items())


def _in_short(trial: Trial) -> str:
    if not trial.is_completed:
        return f"{trial.outcome}: {_shortened(trial.reason)}"
    return f"{_known(trial.step_s_median, format_seconds)} a step, overhead {_known(trial.overhead, '{:+.1%}'.format)}"


def _shortened(reason: str) -> str:
    return textwrap.shorten(reason, _MAX_REASON, placeholder=" ...")


def _cells(trial: Trial) -> list[str]:
    if not trial.is_completed:
        return [trial.outcome]
    low, high = trial.step_s_quartiles or (0.0, 0.0)
    return [
        _known(trial.step_s_median, format_seconds),
        f"{format_seconds(low)} to {format_seconds(high)}",
        _known(trial.overhead, "{:+.1%}".format),
        f"{_known(trial.items_per_s, _scaled)} {trial.item}",
        _known(trial.evicted_bytes, format_bytes),
        _known(trial.fetched_bytes, format_bytes),
        _known(trial.wait_s, format_seconds),
        _known(trial.peak_device_bytes, format_bytes),
        _known(trial.peak_host_bytes, format_bytes),
        _known(trial.peak_disk_bytes, format_bytes),
    ]


def _scaled(items_per_s: float) -> str:
    if items_per_s >= 1e6:
        return f"{items_per_s / 1e6:.3g} M"
    return f"{items_per_s:.4g}"


def _known(figure: float | None, form: Callable[[float], str]) -> str:
    return "-" if figure is None else form(figure)
