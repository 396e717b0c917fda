"""A reading for people: as a few rows of a terminal, or as one line."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch_lms.live.reading import Pace, PageGroup, Reading
from torch_lms.live.wording import moved_and_held
from torch_lms.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_GROUPS = 4
"""Of the largest pages that are shown."""

ROWS = 8 + MAX_GROUPS
"""Of a view, at most."""

_BAR_WIDTH = 20
_NAME_WIDTH = len("largest")


def view(reading: Reading, pace: Pace | None) -> "RenderableType":
    """``ROWS`` rows or fewer. ``pace``: None before it is known."""
    from rich.console import Group
    from rich.rule import Rule
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True, min_width=_NAME_WIDTH)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for name, text in _rows(reading, pace):
        table.add_row(name, text)
    return Group(Rule(_title(reading), align="left", style="cyan"), table)


def line(earlier: Reading | None, later: Reading) -> str:
    """What happened between the two; since counting began without the first."""
    evicted, fetched, stall_s = later.evicted_bytes, later.fetched_bytes, later.stall_s
    if earlier is not None and earlier.evicted_bytes <= later.evicted_bytes and earlier.steps <= later.steps:
        evicted -= earlier.evicted_bytes
        fetched -= earlier.fetched_bytes
        stall_s -= earlier.stall_s
    moved = moved_and_held(evicted, fetched, stall_s, later.peak_resident_bytes, later.limit_bytes)
    step = "" if later.median_step_s is None else f", {format_seconds(later.median_step_s)} a step"
    return f"LMS: {_steps(later.steps)}{step}: {moved}"


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _title(reading: Reading) -> str:
    return (
        f"LMS of process {reading.pid} ({reading.policy}, {reading.interposer}): {_steps(reading.steps)}, "
        f"{reading.planned_steps} planned"
    )


def _rows(reading: Reading, pace: Pace | None) -> Iterator[tuple[str, str]]:
    yield "device", _device(reading)
    if reading.host_limit_bytes:
        yield "host", _bar(reading.host_bytes, reading.host_limit_bytes)
    yield "disk", _bar(reading.disk_bytes, reading.disk_bytes + reading.disk_free_bytes)
    yield "moves", _moves(reading, pace)
    yield "waits", _waits(reading, pace)
    yield "step", _step(reading)
    if reading.unpaged_bytes:
        yield "stays", ", ".join(f"{format_bytes(nbytes)} {why}" for why, nbytes in reading.unpaged_bytes.items())
    for number, group in enumerate(reading.pages[:MAX_GROUPS]):
        yield "" if number else "largest", _group(group)


def _bar(part: int, whole: int) -> str:
    filled = min(_BAR_WIDTH, round(part / whole * _BAR_WIDTH)) if whole else 0
    return f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)}  {format_bytes(part)} of {format_bytes(whole)}"


def _device(reading: Reading) -> str:
    peak = f"at most {format_bytes(reading.peak_resident_bytes)}"
    demand = f", without LMS {format_bytes(reading.demand_bytes)}" if reading.demand_bytes else ""
    reserved = f"; PyTorch holds {format_bytes(reading.reserved_bytes)}" if reading.reserved_bytes else ""
    return f"{_bar(reading.resident_bytes, reading.limit_bytes)} ({peak}{demand}){reserved}"


def _moves(reading: Reading, pace: Pace | None) -> str:
    totals = f"in all {format_bytes(reading.evicted_bytes)} and {format_bytes(reading.fetched_bytes)}"
    if pace is None:
        return f"out and in: {totals}"
    out, back = format_bytes(pace.out_bytes_per_s), format_bytes(pace.in_bytes_per_s)
    recomputed = f", recomputed {format_bytes(pace.recomputed_bytes_per_s)}/s" if reading.recomputed_bytes else ""
    return f"out {out}/s, in {back}/s{recomputed} ({totals})"


def _waits(reading: Reading, pace: Pace | None) -> str:
    now = "" if pace is None else f"{pace.waited_fraction:.0%} of the time now, "
    return f"{now}{format_seconds(reading.stall_s)} in all; {reading.hidden_fraction:.0%} of the copies' time is hidden"


def _step(reading: Reading) -> str:
    if reading.step_s is None or reading.median_step_s is None:
        return "none has ended yet"
    took = f"{format_seconds(reading.step_s)}, the median {format_seconds(reading.median_step_s)}"
    if not reading.plan_step_s:
        return f"{took}; no plan is followed yet"
    longer = reading.median_step_s / reading.plan_step_s - 1
    return f"{took}; the plan's operations take {format_seconds(reading.plan_step_s)} ({longer:+.0%})"


def _group(group: PageGroup) -> str:
    where = f"{group.state}, {group.tier}" if group.tier else group.state
    stays = f"; stays: {group.unpageable}" if group.unpageable else ""
    count = "" if group.count == 1 else f"{group.count} x "
    return f"{count}{format_bytes(group.nbytes)} {where}{stays}"
