"""Shows answers of ``torch-lms plan`` to people."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch_lms.answers import Answer
from torch_lms.trace import summarize
from torch_lms.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

_MAX_HOLDERS = 5
_LABEL_WIDTH = 28
_COLUMN_WIDTH = 28


def show(console: "Console", name: str, answers: Sequence[Answer]) -> None:
    """Print a table with one column a machine, the advice for each, and who holds the peak."""
    from rich.table import Table

    if not console.is_terminal:  # a file has no edge at which columns must end
        console.width = max(console.width, _LABEL_WIDTH + _COLUMN_WIDTH * len(answers))
    table = Table(title=_title(name, answers[0]), title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for answer in answers:
        table.add_column(_machine(answer), justify="right")
    columns = [_rows(answer) for answer in answers]
    for label in columns[0]:
        table.add_row(label, *(column[label] for column in columns))
    console.print(table)

    for answer in answers:
        prefix = f"{_machine(answer)}, {_interposer(answer)}: " if len(answers) > 1 else ""
        console.print(f"{prefix}{answer.forecast.advice}", markup=False, soft_wrap=True)

    console.print("alive at the peak, by the operation that created them:", style="bold")
    holders = summarize(answers[0].traced.trace).holders
    for creator, nbytes in holders[:_MAX_HOLDERS]:
        console.print(f"  {format_bytes(nbytes):>8}  {creator}", markup=False)


def _title(name: str, answer: Answer) -> str:
    setting = answer.setting
    parts = [name]
    if setting.size is not None:
        parts.append(f"size {setting.size}")
    if setting.batch is not None:
        parts.append(f"batch {setting.batch}")
    parts.extend(f"{key} {value}" for key, value in setting.options.items())
    if setting.is_inference:
        parts.append("inference")
    return ", ".join(parts)


def _machine(answer: Answer) -> str:
    forecast = answer.forecast
    return f"{forecast.machine} x {forecast.gpus}" if forecast.gpus > 1 else forecast.machine


def _interposer(answer: Answer) -> str:
    return answer.forecast.interposer or "no LMS"


def _rows(answer: Answer) -> dict[str, str]:
    """The cells of a column, by the label of the row."""
    found = answer.forecast
    rows = {}
    if answer.largest is not None:
        largest = answer.largest
        factor = f" ({largest.factor:.2f} x)" if largest.factor else ""
        rows[f"largest {largest.what} without LMS"] = str(largest.without) if largest.without else "none"
        rows[f"largest {largest.what} with LMS"] = f"{largest.with_lms}{factor}"
    limit_over_w = found.limit_bytes / found.largest_op_bytes if found.largest_op_bytes else 0.0
    rows |= {
        "fits without LMS": _yes(found.fits_without),
        "fits with LMS": _yes(found.fits_with),
        "demand": format_bytes(found.demand_bytes),
        "limit": format_bytes(found.limit_bytes),
        "working set (W)": format_bytes(found.largest_op_bytes),
        "limit / W": f"{limit_over_w:.2f}",
        "policy": found.policy,
        "interposer": _interposer(answer),
        "step": _known(found.step_s, format_seconds),
        "  between": _between(found.step_s_low, found.step_s_high),
        "  without LMS or a limit": format_seconds(found.step_s_unlimited),
        "  ideal": format_seconds(found.ideal_step_s),
        "overhead": _known(found.overhead, "{:.1%}".format),
        "efficiency": _known(found.efficiency, "{:.0%}".format),
        "data rate": _known(found.data_rate, _rate),
        "GPU use": _known(found.gpu_use, "{:.0%}".format),
        "host's work": _known(found.host_work_s, format_seconds),
        "waits for the host": _known(found.host_wait, "{:.0%}".format),
        "  the same without LMS": f"{found.host_wait_unlimited:.0%}",
        "bound by the host": "-" if found.is_host_bound is None else _yes(found.is_host_bound),
        "the host's own part": _known(found.host_part_s, format_seconds),
        "link use": _known(found.link_use, "{:.0%}".format),
        "evicted, a step": _known(found.d2h_bytes, format_bytes),
        "fetched, a step": _known(found.h2d_bytes, format_bytes),
        "recomputed, a step": _known(found.recomputed_bytes, format_bytes),
        "host memory needed": _known(found.host_bytes, format_bytes),
        "disk needed": _known(found.disk_bytes, format_bytes),
    }
    if answer.lasting is not None:
        rows["an epoch"] = _known(answer.lasting.epoch_s, format_seconds)
        rows["in all"] = _known(answer.lasting.total_h, "{:.1f} h".format)
    return rows


def _known(figure: float | None, form: Callable[[float], str]) -> str:
    """A dash where there is no figure: nothing is known of a step that does not fit."""
    return "-" if figure is None else form(figure)


def _between(low_s: float | None, high_s: float | None) -> str:
    if low_s is None or high_s is None:
        return "-"
    return f"{format_seconds(low_s)} and {format_seconds(high_s)}"


def _rate(items_per_s: float) -> str:
    return f"{items_per_s / 1e6:.3g} M/s" if items_per_s >= 1e6 else f"{items_per_s:,.0f} /s"


def _yes(fits: bool) -> str:
    return "yes" if fits else "no"
