"""Answers of `torch-lms plan` for people."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch_lms.cli.plan_answer import Answer
from torch_lms.trace import summarize
from torch_lms.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

_MOST_HOLDERS = 5
_LABEL, _COLUMN = 28, 28
"""Width in letters."""


def show(console: "Console", name: str, answers: Sequence[Answer]) -> None:
    """One column a machine."""
    from rich.table import Table

    if not console.is_terminal:  # a file has no edge
        console.width = max(console.width, _LABEL + _COLUMN * len(answers))
    table = Table(title=_title(name, answers[0]), title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for answer in answers:
        table.add_column(_machine(answer), justify="right")
    for row in zip(*map(_rows, answers), strict=True):
        table.add_row(row[0][0], *(cell for _, cell in row))
    console.print(table)
    for answer in answers:
        prefix = f"{answer.forecast.machine}: " if len(answers) > 1 else ""
        console.print(f"{prefix}{answer.forecast.advice}", markup=False, soft_wrap=True)
    holders = summarize(answers[0].traced.trace).holders[:_MOST_HOLDERS]
    console.print("alive at the peak, by the operation that created them:", style="bold")
    for creator, nbytes in holders:
        console.print(f"  {format_bytes(nbytes):>8}  {creator}", markup=False)


def _title(name: str, answer: Answer) -> str:
    setting = answer.setting
    told = [f"{key} {value}" for key, value in (("size", setting.size), ("batch", setting.batch)) if value is not None]
    told += [f"{key} {value}" for key, value in setting.options.items()]
    told += ["inference"] if setting.is_inference else []
    return ", ".join([name, *told])


def _machine(answer: Answer) -> str:
    gpus = answer.forecast.gpus
    return answer.forecast.machine + (f" x {gpus}" if gpus > 1 else "")


def _rows(answer: Answer) -> list[tuple[str, str]]:
    found = answer.forecast
    share = found.limit_bytes / found.largest_op_bytes if found.largest_op_bytes else 0.0
    rows = []
    if answer.largest is not None:
        largest = answer.largest
        rows.append((f"largest {largest.what} without LMS", str(largest.without) if largest.without else "none"))
        factor = f" ({largest.factor:.2f} x)" if largest.factor else ""
        rows.append((f"largest {largest.what} with LMS", f"{largest.with_lms}{factor}"))
    rows += [
        ("fits without LMS", _yes(found.fits_without)),
        ("fits with LMS", _yes(found.fits_with)),
        ("demand", format_bytes(found.demand_bytes)),
        ("limit", format_bytes(found.limit_bytes)),
        ("largest operation (W)", format_bytes(found.largest_op_bytes)),
        ("limit / W", f"{share:.2f}"),
        ("policy", found.policy),
        ("step", _told(found.step_s, format_seconds)),
        ("  between", _between(found.step_s_low, found.step_s_high)),
        ("  without a limit", format_seconds(found.step_s_unlimited)),
        ("  ideal", format_seconds(found.ideal_step_s)),
        ("overhead", _told(found.overhead, "{:.1%}".format)),
        ("efficiency", _told(found.efficiency, "{:.0%}".format)),
        ("data rate", _told(found.data_rate, _rate)),
        ("GPU use", _told(found.gpu_use, "{:.0%}".format)),
        ("link use", _told(found.link_use, "{:.0%}".format)),
        ("to the host, a step", _told(found.d2h_bytes, format_bytes)),
        ("to the device, a step", _told(found.h2d_bytes, format_bytes)),
        ("made again, a step", _told(found.recomputed_bytes, format_bytes)),
        ("host memory needed", _told(found.host_bytes, format_bytes)),
        ("disk needed", _told(found.disk_bytes, format_bytes)),
    ]
    if answer.lasting is not None:
        rows += [("an epoch", _told(answer.lasting.epoch_s, format_seconds))]
        rows += [("in all", _told(answer.lasting.total_h, "{:.1f} h".format))]
    return rows


def _told(figure: float | None, form: Callable[[float], str]) -> str:
    """Nothing is known of a step that does not fit."""
    return "-" if figure is None else form(figure)


def _between(low_s: float | None, high_s: float | None) -> str:
    return "-" if low_s is None or high_s is None else f"{format_seconds(low_s)} and {format_seconds(high_s)}"


def _rate(items_per_s: float) -> str:
    return f"{items_per_s / 1e6:.3g} M/s"


def _yes(fits: bool) -> str:
    return "yes" if fits else "no"
