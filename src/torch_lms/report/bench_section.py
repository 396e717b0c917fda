"""The section of results of ``torch-lms bench``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch_lms.report.charts import Chart, Series, formatted
from torch_lms.report.contents import Bench, Row
from torch_lms.report.results_section import told
from torch_lms.report.sections import Section
from torch_lms.report.tables import Cell, Table

_COMPLETED = "completed"
_UNBROKEN = "\u00a0"
"""A space at which no line is broken."""


class _Curve(NamedTuple):
    title: str
    unit: str
    value: Callable[[Row], float | None]


def bench_section(id: str, bench: Bench) -> Section:
    """The section of ``bench``."""
    axis = _axis(bench)
    notes = [_about(bench.header)]
    if not bench.trials:
        notes.append("No trial has ended yet.")
    elif not any(trial["outcome"] == _COMPLETED for trial in bench.trials):
        notes.append("No trial completed: the table says why.")
    if names := {str(name) for trial in bench.trials for name in trial.get("inexact") or ()}:
        notes.append(f"NOT EXACT: pieces of {', '.join(sorted(names))} may be rounded in another way.")
    title = f"{bench.header.get('target') or bench.name}: measured"
    charts = list(_charts(id, bench, axis)) if axis is not None else []
    tables = [_trials(bench)]
    if axis is not None:
        tables.insert(0, _largest(bench, axis))
    return Section(id, title, notes, charts, tables)


def _about(header: Row) -> str:
    names = {"torch_lms": "torch-lms", "torch": "PyTorch"}
    parts = [f"{name} {header[key]}" for key, name in names.items() if key in header]
    parts += _plain(header.get("machine"))
    parts += _plain(header.get("settings"))
    return "; ".join(parts) or "Nothing is said of machine and versions."


def _plain(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return [] if value in (None, "") else [str(value)]
    known = {name: each for name, each in value.items() if each is not None and not isinstance(each, Mapping | list)}
    return [str(each) if name == "name" else f"{name} {told(name, each)}" for name, each in known.items()]


def _axis(bench: Bench) -> str | None:
    """The number that was varied, as the header says; else the first of a point."""
    settings = bench.header.get("settings")
    asked = settings if isinstance(settings, Mapping) else {}
    varied = {str(asked.get("find")), *(asked.get("sweep") or ())}
    pairs = [pair for trial in bench.trials for pair in trial["point"].items()]
    names = [str(name) for name, value in pairs if isinstance(value, int | float)]
    return next((name for name in names if name in varied), names[0] if names else None)


def _ways(trials: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(trial["way"]) for trial in trials))


def _charts(id: str, bench: Bench, axis: str) -> Iterator[Chart]:
    item = next((str(trial["item"]) for trial in bench.trials if trial.get("item")), "items")
    curves = (
        _Curve("Data rate", f"{item}/s", partial(_number, "items_per_s")),
        _Curve("Overhead against no LMS", "share", partial(_number, "overhead")),
        _Curve("Median step", "seconds", partial(_number, "step_s_median")),
        _Curve("Evicted and fetched, a step", "bytes", _moved),
        _Curve("Waited for copies", "seconds", partial(_number, "wait_s")),
        _Curve("Peak on the device", "bytes", partial(_number, "peak_device_bytes")),
        _Curve("Peak in host memory", "bytes", partial(_number, "peak_host_bytes")),
        _Curve("Peak on disk", "bytes", partial(_number, "peak_disk_bytes")),
    )
    for number, curve in enumerate(curves):
        chart = _chart(f"{id}-{number}", curve, bench.trials, axis)
        if any(value for series in chart.series for value in series.values):
            yield chart


def _chart(id: str, curve: _Curve, trials: Sequence[Row], axis: str) -> Chart:
    at = {(str(trial["way"]), trial["point"].get(axis)): trial for trial in trials}
    xs = sorted({x for _, x in at if isinstance(x, int | float)})
    has_band = curve.unit == "seconds" and curve.title == "Median step"
    series = []
    failures = []
    for way in _ways(trials):
        here = [at.get((way, x), {}) for x in xs]
        low = [_quartile(trial, 0) for trial in here] if has_band else []
        high = [_quartile(trial, 1) for trial in here] if has_band else []
        series.append(Series(way, [curve.value(trial) for trial in here], low, high))
        failures += [
            (x, way, str(trial["outcome"]))
            for x, trial in zip(xs, here, strict=True)
            if trial.get("outcome", _COMPLETED) != _COMPLETED
        ]
    return Chart(id, f"{curve.title} by {axis}", axis, xs, curve.unit, series, failures)


def _number(name: str, trial: Row) -> float | None:
    value = trial.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _moved(trial: Row) -> float | None:
    out, back = _number("evicted_bytes", trial), _number("fetched_bytes", trial)
    return None if out is None and back is None else (out or 0.0) + (back or 0.0)


def _quartile(trial: Row, which: int) -> float | None:
    quartiles = trial.get("step_s_quartiles")
    if not isinstance(quartiles, list) or len(quartiles) != 2:
        return None
    return float(quartiles[which])


def _largest(bench: Bench, axis: str) -> Table:
    rows: list[list[Cell]] = []
    for way in _ways(bench.trials):
        done = [t["point"].get(axis) for t in bench.trials if t["way"] == way and t["outcome"] == _COMPLETED]
        failed = [t["point"].get(axis) for t in bench.trials if t["way"] == way and t["outcome"] != _COMPLETED]
        numbers = [x for x in done if isinstance(x, int | float)]
        failures = [x for x in failed if isinstance(x, int | float)]
        expected = [_number("largest", _forecast(trial)) for trial in bench.trials if trial["way"] == way]
        largest = next((x for x in expected if x is not None), None)
        rows.append(
            [
                way,
                "-" if largest is None else f"{largest:g}" if largest else "none",
                f"{max(numbers):g}" if numbers else "none",
                f"{min(failures):g}" if failures else "-",
            ]
        )
    head = ["way", "forecast", f"largest {axis} that completed", f"least {axis} that did not"]
    return Table(f"The largest {axis} of each way", head, rows)


_Column = tuple[str, str, str]
"""The name in the file, for people, and the unit."""

_COLUMNS = (
    ("ranks", "ranks", ""),
    ("step_s_median", "median step", "seconds"),
    ("items_per_s", "items/s", ""),
    ("overhead", "overhead", "share"),
    ("evicted_bytes", "evicted", "bytes"),
    ("fetched_bytes", "fetched", "bytes"),
    ("recomputes", "recomputes", ""),
    ("wait_s", "waited", "seconds"),
    ("demand_bytes", "demand", "bytes"),
    ("limit_bytes", "limit", "bytes"),
    ("peak_device_bytes", "device", "bytes"),
    ("peak_host_bytes", "host", "bytes"),
    ("peak_disk_bytes", "disk", "bytes"),
    ("peak_rss_bytes", "process", "bytes"),
)


_FORECAST = (
    ("step_s", "forecast step", "seconds"),
    ("overhead", "forecast overhead", "share"),
    ("evicted_bytes", "forecast evicted", "bytes"),
)


def _trials(bench: Bench) -> Table:
    """All trials, with the columns of which any trial tells."""
    measured = _told(_COLUMNS, bench.trials)
    expected = _told(_FORECAST, [_forecast(trial) for trial in bench.trials])
    rows: list[list[Cell]] = []
    for trial in bench.trials:
        point = ", ".join(f"{name} {value}" for name, value in trial["point"].items()).replace(" ", _UNBROKEN)
        outcome = str(trial["outcome"])
        if trial.get("reason"):
            outcome = f"{outcome}: {trial['reason']}"
        figures = [formatted(_number(name, trial), unit) for name, _, unit in measured]
        forecasts = [formatted(_number(name, _forecast(trial)), unit) for name, _, unit in expected]
        rows.append([str(trial["way"]), point, outcome, _told_to_fit(trial), *figures, *forecasts])
    labels = [label for _, label, _ in (*measured, *expected)]
    return Table("All trials", ["way", "point", "outcome", "forecast", *labels], rows)


def _told(columns: Sequence[_Column], rows: Sequence[Row]) -> list[_Column]:
    """The columns of which any row tells."""
    return [column for column in columns if any(_number(column[0], row) is not None for row in rows)]


def _forecast(trial: Row) -> Row:
    """What ``plan`` said before the trial; empty where it said nothing."""
    found = trial.get("forecast")
    return found if isinstance(found, Mapping) else {}


def _told_to_fit(trial: Row) -> str:
    fits = _forecast(trial).get("fits")
    return formatted(None, "") if fits is None else "fits" if fits else "does not fit"
