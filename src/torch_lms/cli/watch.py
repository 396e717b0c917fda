"""``torch-lms watch``: shows the session of another process while it runs."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

import click

from torch_lms.live import line, pace_between, readings_of, view
from torch_lms.live.reading import Reading
from torch_lms.output import JsonTarget, json_option, people_console

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("pid", type=click.IntRange(1), metavar="PID")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N readings (default: with the session).")
@json_option
def command(pid: int, count: int | None, json_to: JsonTarget | None) -> None:
    """Show what LMS does in process PID, a reading a second, until its session ends.

    The process has to be this user's, and to have been started by `torch-lms run --watch`, or with TORCH_LMS_WATCH=1 in
    its environment. With --json each reading is written as a line of JSON, and nothing else is shown.
    """
    readings = _first(count, readings_of(pid))
    if json_to is None:
        _show(people_console(None), readings)
    elif json_to == "-":
        _write(sys.stdout, readings)
    else:
        with json_to.open("w", encoding="utf-8") as file:
            _write(file, readings)


def _first(count: int | None, readings: Iterator[Reading]) -> Iterator[Reading]:
    for number, reading in enumerate(readings, start=1):
        yield reading
        if number == count:
            return


def _write(file: TextIO, readings: Iterator[Reading]) -> None:
    for reading in readings:
        file.write(reading.as_line())
        file.flush()


def _show(console: "Console", readings: Iterator[Reading]) -> None:
    """As a view that changes in place; as a line for each where there is no terminal."""
    from rich.live import Live

    before = None
    if not console.is_terminal:
        for reading in readings:
            console.print(line(before, reading), markup=False, soft_wrap=True)
            before = reading
        return
    with Live(console=console, auto_refresh=False) as live:
        for reading in readings:
            live.update(view(reading, pace_between(before, reading)), refresh=True)
            before = reading
