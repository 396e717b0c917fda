"""Answers of `torch-lms plan` for people."""

from collections.abc import Sequence
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

    def fitting(told: str) -> str:
        """There is no step of what does not fit."""
        return told if found.fits_with else "-"

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
        ("step", fitting(format_seconds(found.step_s))),
        ("  between", fitting(f"{format_seconds(found.step_s_low)} and {format_seconds(found.step_s_high)}")),
        ("  without a limit", format_seconds(found.step_s_unlimited)),
        ("  ideal", format_seconds(found.ideal_step_s)),
        ("overhead", fitting(f"{found.overhead:.1%}")),
        ("efficiency", fitting(f"{found.efficiency:.0%}")),
        ("data rate", fitting(f"{found.data_rate / 1e6:.3g} M/s")),
        ("GPU use", fitting(f"{found.gpu_use:.0%}")),
        ("link use", fitting(f"{found.link_use:.0%}")),
        ("to the host, a step", f"{format_bytes(found.d2h_bytes)}"),
        ("to the device, a step", f"{format_bytes(found.h2d_bytes)}"),
        ("made again, a step", format_bytes(found.recomputed_bytes)),
        ("host memory needed", format_bytes(found.host_bytes)),
        ("disk needed", format_bytes(found.disk_bytes)),
    ]
    if answer.epoch_s is not None and answer.total_h is not None:
        rows += [("an epoch", fitting(format_seconds(answer.epoch_s))), ("in all", fitting(f"{answer.total_h:.1f} h"))]
    return rows


def _yes(fits: bool) -> str:
    return "yes" if fits else "no"
