"""The versions of PyTorch: named alike everywhere, and how ``tests.versions`` writes what it found."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests import versions

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def allowed(package: str, wanted: list[str]) -> range:
    """The minor versions that are allowed of a package."""
    found = next(match for one in wanted if (match := re.fullmatch(rf"{package}>=\d+\.(\d+),<\d+\.(\d+)", one)))
    return range(int(found[1]), int(found[2]))


TORCH = allowed("torch", PROJECT["dependencies"])
TORCHVISION = allowed("torchvision", PROJECT["optional-dependencies"]["workloads"])


def test_nox_runs_all_that_may_be_installed() -> None:
    nodes = ast.parse((ROOT / "noxfile.py").read_text()).body
    (listed,) = [one.value for one in nodes if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "TORCH"]
    assert ast.literal_eval(listed) == tuple(f"2.{minor}" for minor in TORCH)


def test_each_that_may_be_installed_has_a_row() -> None:
    rows = re.findall(r"^\| 2\.(\d+)\.\d\S* \|", versions.DOCUMENT.read_text(), re.MULTILINE)
    assert [int(minor) for minor in rows] == list(TORCH)


def test_what_ci_installs_may_be_installed() -> None:
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert int(pinned["torch"].split(".")[1]) in TORCH
    assert int(pinned["torchvision"].split(".")[1]) in TORCHVISION
    assert "PIP_CONSTRAINT" in (ROOT / ".ci" / "run").read_text()


def test_what_is_run_exists() -> None:
    for path in (*versions.INSIDE_PYTORCH, *versions.AS_ON_CUDA, *versions.ACCELERATOR):
        assert (ROOT / path).exists(), path


TABLE = """Before.
<!-- begin: versions -->
| PyTorch | result |
|---|---|
| 2.9.1 | old |
| 2.11.0+cu130 | older |
<!-- end: versions -->
After.
"""


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        ("| 2.11.2 | new |", ["| 2.9.1 | old |", "| 2.11.2 | new |"]),
        ("| 2.10.0 | new |", ["| 2.9.1 | old |", "| 2.10.0 | new |", "| 2.11.0+cu130 | older |"]),
        ("| 3.0.0 | new |", ["| 2.9.1 | old |", "| 2.11.0+cu130 | older |", "| 3.0.0 | new |"]),
    ],
)
def test_a_row_takes_its_place(row: str, rows: list[str]) -> None:
    lines = versions.with_row(TABLE, row).splitlines()
    assert lines[4:-2] == rows
    assert [*lines[:4], *lines[-2:]] == [*TABLE.splitlines()[:4], *TABLE.splitlines()[-2:]]


def test_tests_are_counted_by_how_they_ended() -> None:
    report = """<testsuites><testsuite>
        <testcase name="a"/><testcase name="b"/>
        <testcase name="c"><failure message="no"/></testcase>
        <testcase name="d"><error message="no"/></testcase>
        <testcase name="e"><skipped type="pytest.skip" message="why"/></testcase>
        <testcase name="f"><skipped type="pytest.xfail" message="why"/></testcase>
    </testsuite></testsuites>"""
    assert versions.counted(report) == "2 passed, 2 failed, 1 expected to fail, 1 skipped"
    assert versions.counted("<testsuites/>") == "none"


def test_verdicts_are_counted_by_kind() -> None:
    equal, as_any_mode = '{"state": "equal", "failures": []}', '{"state": "mode", "failures": []}'
    failed = '{"state": "differs", "failures": ["differs: why"]}'
    assert versions.judged("\n".join([equal, failed, equal, as_any_mode])) == "2 equal, 1 failed, 1 as any mode"
