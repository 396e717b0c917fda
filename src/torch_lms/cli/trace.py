"""``torch-lms trace``: shows what a recorded step did, at a glance."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from torch_lms.output import JsonTarget, json_option, people_console, write_json
from torch_lms.trace import Curve, LargePage, Summary, demand_curve, load, summarize
from torch_lms.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 60
_BARS = " ▁▂▃▄▅▆▇█"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def command(file: Path, json_to: JsonTarget | None) -> None:
    """Summarize FILE, a trace that `torch-lms run --trace FILE` or `torch_lms.trace.save` wrote.

    Shows how much the step holds at once over its operations, its ten largest tensors, and who holds the peak.
    """
    trace = load(file)
    curve = demand_curve(trace)
    summary = summarize(trace)
    _show(people_console(json_to), curve, summary)
    if json_to is not None:
        write_json({"summary": summary, "demand_curve": curve.nbytes}, json_to)


def _show(console: "Console", curve: Curve, summary: Summary) -> None:
    number, name = summary.peak_op
    lines = [
        f"{summary.ops} operations on {summary.pages} pages in {format_seconds(summary.seconds)}",
        f"demand           {format_bytes(summary.demand_bytes)}, at operation {number} ({name})",
        f"working set (W)  {format_bytes(summary.working_set_bytes)}",
        "",
        f"bytes alive      {_sparkline(curve)}",
        "",
        "alive at the peak, by the operation that created them",
        *(f"  {format_bytes(nbytes):>10}  {creator}" for creator, nbytes in summary.holders),
        "",
        "largest pages",
        *(
            f"  {format_bytes(page.nbytes):>10}  page {page.page}, {_life(page, summary.ops)}, by {page.created_by}"
            for page in summary.largest
        ),
    ]
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _life(page: LargePage, ops: int) -> str:
    """From which operation to which ``page`` lives, in a step of ``ops`` operations."""
    born = "start" if page.born < 0 else str(page.born)
    if page.dead < 0:
        dead = "start"
    elif page.dead >= ops:
        dead = "end"
    else:
        dead = str(page.dead)
    return f"{born} to {dead}"


def _sparkline(curve: Curve) -> str:
    """The most bytes alive in each of ``_WIDTH`` parts of the step, as bars."""
    count = len(curve.nbytes)
    highest = max(curve.demand_bytes, 1)
    bars = []
    for n in range(_WIDTH):
        first = count * n // _WIDTH
        end = max(count * (n + 1) // _WIDTH, first + 1)  # a step of few operations has several bars for one
        most = max(curve.nbytes[first:end], default=0)
        bars.append(_BARS[round(most / highest * (len(_BARS) - 1))])
    return "".join(bars)
