"""What touches PyTorch's inside, on the PyTorch that is installed: a row of docs/compatibility.md.

python -m tests.versions            in any environment
nox -s torch-versions               in an environment for each version
"""

import datetime
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "compatibility.md"

INSIDE_PYTORCH = (
    "tests/cpu/test_closures.py",
    "tests/cpu/test_compat.py",
    "tests/cpu/test_compiled.py",
    "tests/cpu/test_compiler.py",
    "tests/cpu/test_exporting.py",
    "tests/cpu/test_extensions.py",
    "tests/cpu/test_fake_trace.py",
    "tests/cpu/test_features.py",
    "tests/cpu/test_features_autograd.py",
    "tests/cpu/test_features_training.py",
    "tests/cpu/test_found_by_pytorch.py",
    "tests/cpu/test_native.py",
    "tests/cpu/test_native_recompute.py",
    "tests/cpu/test_optimizer_runs.py",
    "tests/cpu/test_pieces.py",
    "tests/cpu/test_raw_access.py",
    "tests/cpu/test_roads.py",
    "tests/cpu/test_schema.py",
    "tests/cpu/test_session.py",
    "tests/cpu/test_sizes.py",
    "tests/cpu/test_torch_version.py",
)
"""Tests of what depends on PyTorch's inside, which changes with its version."""

AS_ON_CUDA = ("tests/cpu/test_as_on_cuda.py",)
"""Needs a build for CUDA, and no GPU."""

SWEEP_EVERY = 20
"""Of PyTorch's own operators, modules and optimizers, one in so many: some minutes on two cores."""

ACCELERATOR = (
    "tests/accelerator/test_device.py",
    "tests/accelerator/test_found_by_review.py",
    "tests/accelerator/test_programs.py",
    "tests/accelerator/test_schedules.py",
    "tests/accelerator/test_workspaces.py",
    "tests/gpu/test_bandwidth.py",
    "tests/gpu/test_memory.py",
    "tests/gpu/test_streams.py",
)
"""They build the test accelerator against the headers of this PyTorch."""

BUT_SLOW_ONES = "not (delayed or lazy or lstm)"
"""Trainings have one schedule of three, the most mixed. Those of an LSTM take half of the time."""

_ROW = re.compile(r"^\| (\d+)\.(\d+)\.")


@click.command()
@click.option("--write/--no-write", default=True, help="Whether to write the row into docs/compatibility.md.")
@click.option("--workers", default=2, show_default=True)
def main(write: bool, workers: int) -> None:
    """Test what touches PyTorch's inside on the PyTorch that is installed, and write a row of docs/compatibility.md."""
    import torch

    stages = (
        pytest(INSIDE_PYTORCH, "-n", str(workers)),
        pytest(AS_ON_CUDA),
        sweep(workers),
        pytest(ACCELERATOR, "-n", str(workers), "-k", BUT_SLOW_ONES),
    )
    today = datetime.date.today().isoformat()
    row = f"| {' | '.join((torch.__version__, *(cell for cell, _ in stages), today))} |"
    print(row)
    if write:
        DOCUMENT.write_text(with_row(DOCUMENT.read_text(), row))
    sys.exit(not all(is_ok for _, is_ok in stages))


def pytest(tests: tuple[str, ...], *options: str) -> tuple[str, bool]:
    """Run ``tests``. Returns what came of them, for a cell of the table, and whether some passed and none failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *options, *tests]
        code = subprocess.run(command, cwd=ROOT).returncode
        if not report.exists():
            return f"ended with {code}", False
        ended = counted(report.read_text())
        return ended, code == 0 and "passed" in ended


def counted(report: str) -> str:
    """The tests in a report of pytest's, by how they ended."""
    found = Counter(_ending(case) for case in ElementTree.fromstring(report).iter("testcase"))
    endings = ("passed", "failed", "expected to fail", "skipped")
    return ", ".join(f"{found[ending]} {ending}" for ending in endings if found[ending]) or "none"


def _ending(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "expected to fail" if skipped.get("type") == "pytest.xfail" else "skipped"


def sweep(workers: int) -> tuple[str, bool]:
    """Run a sample of the sweep. Returns as ``pytest``."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "verdicts.jsonl"
        options = ["--every", str(SWEEP_EVERY), "--workers", str(workers), "--output", str(output)]
        code = subprocess.run([sys.executable, "-m", "tests.sweep", *options], cwd=ROOT).returncode
        if not output.exists():
            return f"ended with {code}", False
        return judged(output.read_text()), code == 0


def judged(verdicts: str) -> str:
    """The verdicts of a sweep, which are JSON lines, by kind."""
    found = [json.loads(line) for line in verdicts.splitlines()]
    shown = {
        "mode": "as any mode",
        "differs": "unrepeatable",
    }  # where it differs and is no failure, it is known for that
    states = Counter("failed" if one["failures"] else shown.get(one["state"], one["state"]) for one in found)
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def with_row(document: str, row: str) -> str:
    """``document`` with ``row`` in its table: instead of the one of that minor version, or in its place among them."""
    table = re.search(r"(?<=<!-- begin: versions -->\n).*?(?=<!-- end: versions -->)", document, re.DOTALL)
    assert table is not None
    title, line, *rows = table[0].splitlines()
    others = [other for other in rows if _minor(other) != _minor(row)]
    lines = [title, line, *sorted([*others, row], key=_minor)]
    return document[: table.start()] + "".join(f"{line}\n" for line in lines) + document[table.end() :]


def _minor(row: str) -> tuple[int, int]:
    match = _ROW.match(row)
    assert match is not None, row
    return int(match[1]), int(match[2])


if __name__ == "__main__":
    main()
