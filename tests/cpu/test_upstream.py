"""``python -m tests.upstream``, as a stranger runs it, on a source tree made here."""

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from tests.upstream import exceptions, report, source
from tests.upstream.__main__ import main
from tests.upstream.exceptions import Known
from tests.upstream.judging import EQUAL, NAMED, NOT_RUN, ONLY_LMS, Judge, Verdict
from tests.upstream.outcome import Outcome

ROOT = Path(__file__).parents[2]
SETTING, REPEATED = "reactive-0-1", "planned-0-1-x4"


@pytest.fixture(autouse=True)
def _lms_is_a_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests below find out by that whether LMS is on."""
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", "python")


TESTS = """
import os, signal, time
import torch
from torch.testing._internal.common_cuda import what_was_removed
from torch.testing._internal.common_utils import TestCase
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

runs = []

def modes():
    return [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()]

def under_lms():
    return "LmsMode" in modes()

class TestX(TestCase):
    def test_passes(self):
        self.assertEqual(torch.ones(300) + 1, torch.full((300,), 2.0))

    def test_fails_plain(self):
        self.assertEqual(torch.ones(3), torch.zeros(3))

    def test_is_skipped(self):
        self.skipTest("for a reason")

    def test_kills_plain(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def test_hangs_plain(self):
        time.sleep(1000)

    def test_kills_under_lms(self):
        if under_lms():
            os.kill(os.getpid(), signal.SIGSEGV)

    def test_hangs_under_lms(self):
        time.sleep(1000 * under_lms())

    def test_fails_under_lms(self):
        self.assertNotIn("LmsMode", modes())

    def test_other_bits_under_lms(self):
        made = torch.full((300,), 1.0 + 2**-20 * under_lms())
        self.assertEqual(made, torch.ones(300))

    def test_fails_under_any_mode(self):
        self.assertEqual(modes(), [])

    def test_fails_otherwise_under_lms(self):
        if under_lms():
            raise KeyError("another error")
        self.assertEqual(modes(), [])

    def test_other_bits_under_any_mode(self):
        self.assertEqual(torch.full((300,), 1.0 + 2**-20 * len(modes())), torch.ones(300))

    def test_is_never_the_same(self):
        self.assertEqual(1 + int.from_bytes(os.urandom(4), "big") * 1e-15, 1.0)

    def test_passes_once(self):
        runs.append(1)
        self.assertEqual(len(runs), 1)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pytorch")
    (folder / "version.txt").write_text("2.6.0a0\n")
    (folder / "test").mkdir()
    (folder / "test" / "test_x.py").write_text(TESTS)
    return folder


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.upstream", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_becomes_of_each_test(tree: Path, tmp_path: Path) -> None:
    ended = run(tree, "test_x", "--settings", SETTING, "--time-out", 8, "--json", tmp_path / "kept")
    verdicts = [json.loads(line) for line in (tmp_path / "kept").read_text().splitlines()]
    assert {verdict["test"].removeprefix("TestX.test_"): verdict["state"] for verdict in verdicts} == {
        "passes": "equal",
        "fails_plain": "fails plain",
        "is_skipped": "skipped",
        "kills_plain": "fails plain",
        "hangs_plain": "fails plain",
        "kills_under_lms": "only LMS fails",
        "hangs_under_lms": "only LMS fails",
        "fails_under_lms": "only LMS fails",
        "other_bits_under_lms": "only LMS fails",
        "fails_otherwise_under_lms": "only LMS fails",
        "fails_under_any_mode": "as any mode",
        "other_bits_under_any_mode": "as any mode",
        "is_never_the_same": "unrepeatable",
        "passes_once": "equal",
    }, ended.stderr
    assert ended.returncode == 1
    assert "warning: " in ended.stdout
    assert "common_cuda.what_was_removed" in ended.stdout
    assert "5 tests fail only under LMS" in ended.stdout
    for line in (
        "test_x TestX.test_kills_under_lms [reactive-0-1]: crashed: SIGSEGV: ",
        "test_x TestX.test_hangs_under_lms [reactive-0-1]: timed out: after 8 s",
        "test_x TestX.test_fails_under_lms [reactive-0-1]: AssertionError: 'LmsMode' unexpectedly found",
        "test_x TestX.test_other_bits_under_lms [reactive-0-1]: bits differ: 1 of 2 compared values",
    ):
        assert line in ended.stdout, ended.stdout
    passed = next(verdict for verdict in verdicts if verdict["test"] == "TestX.test_passes")
    assert passed["evictions"] > 0
    assert passed["compared"] == 2


def test_repeated_and_chosen(tree: Path, tmp_path: Path) -> None:
    ended = run(tree, "test_x.py", "--settings", REPEATED, "--match", "X.test_passes", "--json", tmp_path / "kept")
    verdicts = [json.loads(line) for line in (tmp_path / "kept").read_text().splitlines()]
    assert {verdict["test"]: (verdict["state"], verdict["compared"]) for verdict in verdicts} == {
        "TestX.test_passes": ("equal", 8),
        "TestX.test_passes_once": ("fails plain", 0),
    }
    assert ended.returncode == 0


def test_no_test_begins_when_the_minutes_are_over(tree: Path) -> None:
    ended = run(tree, "test_x", "--minutes", 0, "--every", 5)
    assert "test_x: 3 of 14 tests, one in 5" in ended.stdout
    assert "test_x, tests times settings: 12 not run" in ended.stdout
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("version", "file", "told"),
    [
        ("2.6.0", "test_y", "has no file test_y.py"),
        ("1.13.0", "test_x", "give a source tree of the same major version"),
        ("nonsense", "test_x", "give a source tree of the same major version"),
        ("", "test_x", "has no version.txt"),
    ],
)
def test_input_that_cannot_be_used(tmp_path: Path, version: str, file: str, told: str) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_x.py").touch()
    if version:
        (tmp_path / "version.txt").write_text(version)
    ended = CliRunner().invoke(main, [str(tmp_path), file])
    assert ended.exit_code == 1
    assert ended.output.startswith("Error: ")
    assert told in ended.output
    assert len(ended.output.splitlines()) <= 2


def test_a_folder_without_tests(tmp_path: Path) -> None:
    assert "has no folder test" in CliRunner().invoke(main, [str(tmp_path)]).output


def test_a_setting_that_is_none(tree: Path) -> None:
    assert "no setting 'harsh'" in CliRunner().invoke(main, [str(tree), "--settings", "harsh"]).output


def test_without_expecttest(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    assert "pip install expecttest" in CliRunner().invoke(main, [str(tree), "test_x"]).output


def test_a_file_that_cannot_be_imported(tree: Path) -> None:
    (tree / "test" / "test_broken.py").write_text("raise ValueError('no')")
    ended = run(tree, "test_broken")
    assert ended.stderr == "Error: test_broken.py cannot be imported: ValueError: no\n"
    assert ended.returncode == 1


def test_what_is_slow_is_not_repeated() -> None:
    worker = Mock(seconds=120.0)
    worker.ask.side_effect = [
        Outcome("passed"),  # plain
        Outcome("passed", seconds=20.0),  # paged
        Outcome("passed"),  # plain, repeated
    ]
    judge = Judge(worker, "test_x", "TestX.test_a")
    assert judge.verdict(SETTING).state == EQUAL
    assert judge.verdict(REPEATED).state == NOT_RUN


def test_a_failure_comes_with_the_run_that_shows_it() -> None:
    worker = Mock(seconds=120.0)
    worker.ask.side_effect = [
        Outcome("passed"),  # plain
        Outcome("failed", "KeyError: 1", evictions=7),  # paged
        Outcome("failed", "ValueError: once only"),  # plain again
        Outcome("failed", "KeyError: 2", evictions=8),  # paged, first in its process
        Outcome("failed", "IndexError: no"),  # under an empty mode
    ]
    verdict = Judge(worker, "test_x", "TestX.test_a").verdict(SETTING)
    assert (verdict.state, verdict.detail, verdict.evictions) == (ONLY_LMS, "KeyError: 2", 8)
    assert worker.close.call_count == 3


def test_exceptions_are_named_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    known, slow = (
        Known("test_x", "TestX.test_[ab]", "*-x4,*-0-*", "why"),
        Known("test_x", "*_d", "*", "slow", is_run=False),
    )
    monkeypatch.setattr(exceptions, "KNOWN", (known, slow))
    failing = Verdict("test_x", "TestX.test_a", SETTING, ONLY_LMS)
    passing = Verdict("test_x", "TestX.test_b", SETTING, EQUAL)
    other = Verdict("test_x", "TestX.test_c", SETTING, ONLY_LMS)
    left_out = Verdict("test_x", "TestX.test_d", SETTING, NOT_RUN)
    for verdict in (failing, passing, other, left_out):
        report.name_known(verdict)
    assert (failing.state, passing.state, other.state) == (NAMED, EQUAL, ONLY_LMS)
    assert report.named([failing, passing, other, left_out]) == [
        f"named exception: {known}",
        f"named exception: {slow}",
    ]
    assert report.named([passing, other]) == [f"no longer needed: {known}"]
