"""The section of trainings: loss, metric, time, memory, step by step."""

from collections.abc import Iterator, Sequence

from torch_lms.report.charts import Chart, Series
from torch_lms.report.contents import Training
from torch_lms.report.sections import Section
from torch_lms.report.tables import Cell, Table
from torch_lms.units import format_seconds

_UNITS = {
    "loss": "",
    "step_s": "seconds",
    "data_rate": "a second",
    "lr": "",
    "peak_bytes": "bytes",
    "evicted_bytes": "bytes",
    "fetched_bytes": "bytes",
    "recomputed_bytes": "bytes",
    "stall_s": "seconds",
}
_TITLES = {
    "loss": "Loss",
    "step_s": "Seconds of a step",
    "data_rate": "Data rate",
    "peak_bytes": "Peak of memory",
    "evicted_bytes": "Evicted so far",
    "fetched_bytes": "Fetched so far",
    "recomputed_bytes": "Recomputed so far",
    "stall_s": "Waited so far",
    "lr": "Learning rate",
}
_FEW = 60
"""Steps up to which each is marked by a point."""


def training_section(id: str, trainings: Sequence[Training]) -> Section:
    """All trainings in one section, so that they can be compared."""
    charts = [chart for chart in _charts(id, trainings) if not chart.is_empty]
    tables = [table for training in trainings for table in [_stretches(training)] if table is not None]
    return Section(id, "Training", charts=charts, tables=tables)


def _metrics(trainings: Sequence[Training]) -> list[str]:
    """What is logged beside the figures of a step: metrics of a validation."""
    names = dict.fromkeys(name for training in trainings for row in training.rows for name in row)
    return [name for name in names if name not in _UNITS and name != "step"]


def _charts(id: str, trainings: Sequence[Training]) -> Iterator[Chart]:
    metrics = _metrics(trainings)
    for number, name in enumerate(["loss", *metrics, *(name for name in _UNITS if name != "loss")]):
        values = [{_step(row): _float(row.get(name)) for row in t.rows if row.get(name) is not None} for t in trainings]
        xs = sorted({step for each in values for step in each})
        series = [Series(t.name, [each.get(x) for x in xs]) for t, each in zip(trainings, values, strict=True)]
        is_sparse = name in metrics or len(xs) <= _FEW
        yield Chart(
            f"{id}-{number}",
            _TITLES.get(name, name),
            "step",
            xs,
            _UNITS.get(name, ""),
            series,
            has_points=is_sparse,
        )


def _step(row: object) -> float:
    assert isinstance(row, dict)
    return float(row["step"])


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _stretches(training: Training) -> Table | None:
    """From one validation to the next: an epoch, where one follows each epoch."""
    metrics = _metrics([training])
    rows: list[list[Cell]] = []
    seconds: list[float] = []
    losses: list[float] = []
    for row in training.rows:
        if isinstance(row.get("step_s"), int | float):
            seconds.append(row["step_s"])
        if isinstance(row.get("loss"), int | float):
            losses.append(row["loss"])
        found = {name: row[name] for name in metrics if isinstance(row.get(name), int | float)}
        if found:
            mean = f"{sum(losses) / len(losses):.4g}" if losses else "-"
            told = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            rows.append([str(row["step"]), told, mean, str(len(seconds)), format_seconds(sum(seconds))])
            seconds, losses = [], []
    if not rows:
        return None
    head = ["up to step", "metric", "mean loss", "steps", "time"]
    note = "From one validation to the next: an epoch, where each is followed by one."
    return Table(f"{training.name}: metric and time", head, rows, note)
