"""What one operation crosses is counted, by what happened during it (``python -m tests.journey``)."""

import os
import subprocess
import sys
from pathlib import Path

from tests.journey import EVENTS, Call, Operation
from torch_lms import Stats

ROOT = Path(__file__).parents[2]


def command(*options: str) -> str:
    environment = os.environ | {"COLUMNS": "160"}
    program = [sys.executable, "-m", "tests.journey", *options]
    ended = subprocess.run(program, text=True, capture_output=True, timeout=240, cwd=ROOT, env=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_event_is_seen() -> None:
    rows = [line.split("│")[1:] for line in command().splitlines() if line.startswith("│")]
    assert {cells[0].strip() for cells in rows} == EVENTS.keys()


def test_one_operation_call_by_call() -> None:
    first, *rest = command("--policy", "reactive", "--show", "evicted").splitlines()
    assert f": {len(rest)} calls, " in first
    files = {line.split("(")[-1].rstrip(")") for line in rest}
    assert "capture/mode.py" in files
    assert all((ROOT / "src" / "torch_lms" / file).exists() for file in files)


def event(**changed: int) -> str | None:
    return Operation("aten.add", (), creates=True, before=Stats(), after=Stats(**changed)).event


def test_what_happened_is_told_by_the_figures() -> None:
    assert event() == "born"
    assert event(evictions=1) == "evicted"
    assert event(fetches=1) == "fetched"
    assert event(fetches=1, evictions=1) == "fetched and evicted"
    assert event(fetches=1, evictions=1, recomputes=1) == "recomputed"
    assert event(clean_drops=1) is None
    assert event(disk_bytes=1) is None


def test_calls_in_another_file_are_switches() -> None:
    files = ["a.py", "a.py", "b.py", "a.py"]
    operation = Operation("aten.add", tuple(Call(file, "f", 0) for file in files), creates=True)
    assert (operation.files, operation.switches) == (2, 2)
