"""What one operation crosses is counted, by what happened during it (``python -m tests.journey``)."""

import os
import subprocess
import sys
from pathlib import Path

from tests.journey import EVENTS, EXECUTORS, RECOMPUTING, Call, Operation

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


def event(*asked: str, file: str = EXECUTORS[0]) -> str | None:
    """What happened during an operation in which these functions of ``file`` were called."""
    calls = tuple(Call(file, f"Some.{function}", 0) for function in asked)
    return Operation("aten.add", calls, creates=True, has_room=False).event


def test_what_happened_is_told_by_what_the_executor_was_asked() -> None:
    assert event() == "born"
    assert event("start_evict", "finish_evict", "release") == "evicted"
    assert event("start_fetch", "finish_fetch") == "fetched"
    assert event("release", "start_fetch") == "fetched and evicted"
    assert event("recompute", file=RECOMPUTING[0]) == "recomputed"
    assert event("start_evict") is None
    assert event("discard") is None


def test_calls_in_another_file_are_switches() -> None:
    files = ["a.py", "a.py", "b.py", "a.py"]
    operation = Operation("aten.add", tuple(Call(file, "f", 0) for file in files), creates=True, has_room=False)
    assert (operation.files, operation.switches) == (2, 2)
