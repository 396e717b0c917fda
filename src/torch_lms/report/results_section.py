"""Sections of forecasts, results and demos, and of pictures."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch_lms.report.charts import Chart, Series
from torch_lms.report.contents import Demo, Picture, Plans, Result, Row
from torch_lms.report.sections import PictureSection, Section
from torch_lms.report.tables import Cell, Table, bars
from torch_lms.units import format_bytes, format_seconds

_PICTURES_BYTES = 3_500_000
"""Of all pictures together: a report stays below 6 MB, and base64 takes a third more."""

_PLAN_ROWS = (
    *(
        "policy",
        "interposer",
        "fits_without",
        "fits_with",
        "demand_bytes",
        "limit_bytes",
        "largest_op_bytes",
        "binding_op",
    ),
    *("step_s", "step_s_unlimited", "overhead", "data_rate", "gpu_use", "link_use", "d2h_bytes", "h2d_bytes"),
    *("recomputed_bytes", "host_bytes", "disk_bytes", "max_without", "max_with", "factor", "epoch_s", "total_h"),
)
_SHARES = frozenset({"overhead", "gpu_use", "link_use", "hidden_fraction", "host_wait"})


def told(name: str, value: Any) -> str:
    """A figure for people, in the unit that its name ends in."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name in _SHARES:
            return f"{value:.1%}"
        if name.endswith("bytes"):
            return format_bytes(value)
        if name.endswith("_per_s"):
            return f"{value:.4g} a second"
        if name.endswith("_s"):
            return format_seconds(value)
        return f"{value:.6g}"
    return str(value)


def plans_section(id: str, plans: Plans) -> Section:
    """Forecasts beside each other."""
    forecasts = plans.forecasts
    names = [name for name in _PLAN_ROWS if any(forecast.get(name) is not None for forecast in forecasts)]
    rows: list[list[Cell]] = []
    for name in names:
        values = [forecast.get(name) for forecast in forecasts]
        texts = [told(name, value) for value in values]
        is_bar = name in ("step_s", "data_rate")
        rows.append([name, *(bars([_number(value) for value in values], texts) if is_bar else texts)])
    head = ["", *(f"{forecast['machine']} x {forecast.get('gpus', 1)}" for forecast in forecasts)]
    notes = [f"{forecast['machine']}: {forecast['advice']}" for forecast in forecasts if forecast.get("advice")]
    return Section(id, f"Forecasts: {plans.name}", notes, tables=[Table("Forecasts", head, rows)])


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def result_section(id: str, result: Result) -> Section:
    """The figures of a run."""
    rows: list[list[Cell]] = [[name, text] for name, text in _flat(result.figures)]
    charts = []
    losses = result.figures.get("losses")
    if isinstance(losses, list) and losses:
        values = [float.fromhex(loss) if isinstance(loss, str) else float(loss) for loss in losses]
        xs = list(range(1, len(values) + 1))
        charts.append(Chart(f"{id}-loss", "Loss", "step", xs, "", [Series("loss", values)], has_points=len(xs) < 60))
    return Section(id, f"Figures: {result.name}", charts=charts, tables=[Table("Figures", ["", ""], rows)])


def _flat(figures: Row, before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}: ")
        elif not isinstance(value, list):
            yield f"{before}{name}", told(name, value)


def demo_section(id: str, demo: Demo) -> Section:
    """What the demo found, step by step."""
    runs = {name: run for name, run in demo.found["runs"].items() if run is not None}
    count = max((len(run["steps_s"]) for run in runs.values()), default=0)
    xs = list(range(1, count + 1))
    times = [Series(name, [*run["steps_s"], *([None] * (count - len(run["steps_s"])))]) for name, run in runs.items()]
    losses = [Series(name, [*run["losses"], *([None] * (count - len(run["losses"])))]) for name, run in runs.items()]
    charts = [
        Chart(f"{id}-time", "Seconds of each step", "step", xs, "seconds", times),
        Chart(f"{id}-loss", "Loss: the lines lie on each other", "step", xs, "", losses),
    ]
    head = ["run", "outcome", "peak of the process", "median step", "evicted", "fetched", "recomputed"]
    rows: list[list[Cell]] = []
    for name, run in runs.items():
        stats = run.get("stats") or {}
        rows.append(
            [
                name,
                str(run["outcome"]).replace("_", " "),
                told("bytes", run.get("peak_rss_bytes")),
                told("step_s", run.get("step_s")),
                *(told("bytes", stats.get(f"{what}_bytes")) for what in ("evicted", "fetched", "recomputed")),
            ]
        )
    return Section(
        id,
        "The demo",
        demo.found.get("seen", ()),
        [chart for chart in charts if not chart.is_empty],
        [Table("The runs", head, rows)],
    )


def pictures_section(pictures: Sequence[Picture]) -> tuple[PictureSection, list[str]]:
    """The pictures that there is room for; and in a sentence each, those that were left out."""
    shown = []
    left_out = []
    room = _PICTURES_BYTES
    for picture in pictures:
        if len(picture.png) > room:
            left_out.append(
                f"{picture.name} is left out: it has {format_bytes(len(picture.png))}, and the pictures of a report "
                f"have room for {format_bytes(_PICTURES_BYTES)} together. Make it smaller."
            )
            continue
        room -= len(picture.png)
        shown.append((picture.name, base64.b64encode(picture.png).decode("ascii")))
    return PictureSection(shown), left_out
