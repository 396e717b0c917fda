"""Readings, how they are shown, and the rows of a terminal that are kept for them."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from torch_lms.errors import UsageError
from torch_lms.live import Pace, PageGroup, Reading, line, pace_between, view
from torch_lms.live.reading import FORMAT, reading_in
from torch_lms.live.view import MAX_GROUPS, ROWS

EARLIER = Reading(
    pid=7,
    time_s=100.0,
    policy="planned",
    interposer="native",
    steps=40,
    planned_steps=38,
    limit_bytes=2_000_000_000,
    resident_bytes=1_000_000_000,
    peak_resident_bytes=1_900_000_000,
    demand_bytes=4_000_000_000,
    reserved_bytes=0,
    host_bytes=0,
    host_limit_bytes=0,
    disk_bytes=1_000_000_000,
    disk_free_bytes=3_000_000_000,
    evicted_bytes=10_000_000_000,
    fetched_bytes=12_000_000_000,
    recomputed_bytes=0,
    stall_s=3.0,
    hidden_fraction=0.75,
    unpaged_bytes={},
    step_s=1.5,
    median_step_s=1.2,
    plan_step_s=1.0,
    pages=(PageGroup(3, 50_000_000, "evicted", "disk", ""), PageGroup(1, 40_000_000, "resident", "", "lent")),
)
LATER = replace(
    EARLIER, time_s=102.0, steps=42, evicted_bytes=11_000_000_000, fetched_bytes=12_500_000_000, stall_s=3.5
)


def shown(reading: Reading, pace: Pace | None = None, width: int = 120) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(view(reading, pace), no_wrap=True)
    return [row.rstrip() for row in captured.get().splitlines()]


def test_a_reading_travels_as_a_line_of_json() -> None:
    line_of_it = EARLIER.as_line()
    assert line_of_it.count("\n") == 1
    assert json.loads(line_of_it)["format"] == FORMAT
    assert reading_in(line_of_it) == EARLIER


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ("", "expected a line of JSON"),
        ('{"format": 1', "expected a line of JSON"),
        ("[]", "another version"),
        ('{"format": 2}', "another version"),
        ('{"format": 1}', "another version"),
    ],
)
def test_what_is_no_reading(sent: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        reading_in(sent)


def test_the_pace() -> None:
    assert pace_between(EARLIER, LATER) == Pace(5e8, 2.5e8, 0.0, 0.25)
    assert pace_between(None, LATER) is None
    assert pace_between(EARLIER, replace(EARLIER, steps=1, evicted_bytes=5, time_s=101.0)) is None  # counted anew
    assert pace_between(EARLIER, EARLIER) is None


def test_a_line() -> None:
    assert line(EARLIER, LATER) == (
        "LMS: 42 steps, 1.2 s a step: out 1 GB, in 500 MB, waited 500 ms; peak so far 1.9 GB, limit 2 GB"
    )
    assert "out 10 GB, in 12 GB, waited 3 s" in line(None, EARLIER)
    first = replace(EARLIER, steps=1, step_s=None, median_step_s=None)
    assert line(LATER, first).startswith("LMS: 1 step: out 10 GB")


def test_a_view() -> None:
    assert shown(LATER, pace_between(EARLIER, LATER))[1:] == [
        "device   ██████████░░░░░░░░░░  1 GB of 2 GB (at most 1.9 GB, without LMS 4 GB)",
        "disk     █████░░░░░░░░░░░░░░░  1 GB of 4 GB",
        "moves    out 500 MB/s, in 250 MB/s (in all 11 GB and 12.5 GB)",
        "waits    25% of the time now, 3.5 s in all; 75% of the copies' time is hidden",
        "step     1.5 s, the median 1.2 s; the plan's operations take 1 s (+20%)",
        "largest  3 x 50 MB evicted, disk",
        "         40 MB resident; stays: lent",
    ]


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"host_limit_bytes": 4_000_000_000, "host_bytes": 8_000_000_000}, f"host     {'█' * 20}  8 GB of 4 GB"),
        ({"reserved_bytes": 3_000_000_000}, "PyTorch holds 3 GB"),
        ({"unpaged_bytes": {"lent": 5_000_000}}, "stays    5 MB lent"),
        ({"plan_step_s": None}, "no plan is followed yet"),
        ({"step_s": None, "median_step_s": None}, "none has ended yet"),
        ({"steps": 1}, "1 step, 38 planned"),
        ({"limit_bytes": 0}, "1 GB of 0 B"),
    ],
)
def test_what_a_view_says_of(changes: dict[str, Any], row: str) -> None:
    assert row in "\n".join(shown(replace(EARLIER, **changes)))


def test_a_view_fits_its_rows_and_any_width() -> None:
    groups = tuple(PageGroup(2, 10**9 + number, "resident", "", "a long reason " * 9) for number in range(9))
    full = replace(EARLIER, host_limit_bytes=1, unpaged_bytes={"lent": 1}, pages=groups)
    for width in (20, 40, 200):
        rows = shown(full, Pace(1e9, 1e9, 1e9, 0.5), width)
        assert len(rows) == ROWS == 8 + MAX_GROUPS
        assert max(map(len, rows)) <= width


def test_rows_of_a_terminal_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyte", reason="pyte, a terminal in Python, is not installed")
    from live_rig import Terminal

    from torch_lms.live.terminal import LastRows, can_be_painted, write

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(lines=12, columns=40)
    fd = terminal.slave
    assert can_be_painted(fd, 6)
    assert not can_be_painted(fd, 7)
    kept = LastRows(fd, 3)
    write(fd, "".join(f"before {number}\n" for number in range(11)) + "half")
    assert kept.paint(["one", "two"])
    write(fd, " a row\n" + "".join(f"after {number}\n" for number in range(4)))
    assert kept.paint(["ONE"])
    terminal.read_all()
    assert terminal.rows[3:] == ["half a row", "after 0", "after 1", "after 2", "after 3", "", "ONE", "", ""]
    terminal.resize(8, 40)
    assert kept.paint(["small"])
    write(fd, "still here\n")
    kept.leave()
    write(fd, "the end\n")
    terminal.read_all()
    assert "small" not in terminal.rows
    assert [row for row in terminal.rows if row][-2:] == ["still here", "the end"]
    terminal.resize(3, 40)
    assert kept.paint(["too small"])
    terminal.read_all()
    assert "too small" not in terminal.rows
    monkeypatch.setenv("TERM", "dumb")
    assert not can_be_painted(fd, 3)
    terminal.close()
