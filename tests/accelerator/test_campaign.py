"""``python -m tests.campaign`` on the test accelerator: it goes on where it stopped, and says what went wrong."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.campaign import report, runner
from tests.campaign.found import ROOT
from tests.campaign.parts import PARTS, Part


def campaign(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.campaign", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)


def test_a_second_start_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    out, docs = tmp_path / "found.json", tmp_path / "page.md"
    docs.write_text("before\n<!-- begin: campaign -->\nnone\n<!-- end: campaign -->\nafter\n")
    real = (ROOT / "docs" / "gpu.md").read_bytes()
    first = campaign("--on", "testacc", "--parts", "programs", "--out", out)
    assert first.returncode == 0, first.stderr
    assert "3 written, 4 random, 0 go wrong" in first.stdout
    programs = json.loads(out.read_text())["parts"]["programs"]
    assert programs["status"] == "passed"
    more = ("--parts", "programs,validation,overhead", "--minutes", "0.0", "--docs", docs)
    second = campaign("--on", "testacc", "--out", out, *more)
    assert second.returncode == 1
    assert second.stdout.count("time was up; start again to go on") == 2
    found = json.loads(out.read_text())["parts"]
    assert found["programs"] == programs
    assert found["overhead"]["status"] == "not run"
    page = docs.read_text()
    assert page.startswith("before\n<!-- begin: campaign -->\n**Run on 2 x test accelerator 0**")
    assert page.endswith("\n<!-- end: campaign -->\nafter\n")
    assert "| random programs | 4, with " in page
    assert (ROOT / "docs" / "gpu.md").read_bytes() == real


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on", "testacc", "--parts", "tests,nonsense"), "--parts: there is no part 'nonsense'; there are machine, "),
        (("--on", "nonsense"), "nonsense' here" if torch.cuda.is_available() else "PyTorch finds no GPU here"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], message: str) -> None:
    refused = campaign(*arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_part_that_does_not_end_is_ended_with_all_its_children(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(ours)!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    assert runner._ended([sys.executable, "-c", program], dict(os.environ), limit_s=3) is None
    status = Path(f"/proc/{ours.read_text()}/status")
    until_s = time.monotonic() + 10
    while status.exists() and "State:\tZ" not in status.read_text() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_parts_that_fail_are_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    codes = iter((3, None, 0))
    monkeypatch.setattr(runner, "_ended", lambda *_: next(codes))
    part = Part("tests", "tests", 5.0, lambda *_: None)
    found = [runner.run(part, "testacc", 5.0, tmp_path) for _ in range(3)]
    assert [one["status"] for one in found] == ["failed", "timed out", "passed"]
    assert found[0]["failures"] == ["the process ended with 3"]
    assert found[1]["failures"] == ["ended after 5 s"]


def test_results_are_kept_one_by_one(tmp_path: Path) -> None:
    kept = runner.Kept.read(tmp_path / "found.json")
    kept.keep("tests", runner.not_run("no time"))
    kept.keep("programs", {"status": "passed"})
    again = runner.Kept.read(tmp_path / "found.json")
    assert again.parts == kept.parts
    assert [again.passed(name) for name in ("tests", "programs", "overhead")] == [False, True, False]
    (tmp_path / "found.json").write_text("[]")
    with pytest.raises(ValueError, match="holds no results of this campaign"):
        runner.Kept.read(tmp_path / "found.json")


def test_a_page_without_a_place_for_tables_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(ValueError, match="has no place for tables"):
        report.fill(tmp_path / "page.md", "tables")
    assert (tmp_path / "page.md").read_text() == "nothing"
    assert (ROOT / "docs" / "gpu.md").read_text().count("<!-- begin: campaign -->") == 1


def test_the_parts_fit_in_the_time_that_is_promised() -> None:
    assert sum(part.limit_s for part in PARTS.values()) <= 40 * 60
    documented = (ROOT / "docs" / "gpu.md").read_text()
    assert all(f"`{name}`" in documented for name in PARTS)
