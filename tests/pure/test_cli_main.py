"""The command line's frame: what is imported, how errors become a line and an exit code, how results are written."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest

from torch_lms.cli import main as cli
from torch_lms.errors import LmsError, SessionError, UsageError, WorkingSetError
from torch_lms.named_values import named_values
from torch_lms.output import json_option, people_console, to_plain, write_json
from torch_lms.plugins import COMMANDS_GROUP, loaded, summary_of

Run = Callable[..., int | str | None]


def command_line(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "torch_lms", *arguments], text=True, capture_output=True, timeout=60, **options
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``torch-lms fake ARGUMENTS`` with a command made of ``callback``; gives the exit code."""

    def run(callback: Callable[..., object], *arguments: str, options: tuple[click.Option, ...] = ()) -> object:
        command = click.Command("fake", callback=callback, params=list(options))
        monkeypatch.setitem(cli.COMMANDS, "fake", "A command.")
        monkeypatch.setitem(sys.modules, "torch_lms.cli.fake", SimpleNamespace(command=command))
        with pytest.raises(SystemExit) as stopped:
            cli.main(["fake", *arguments])
        return stopped.value.code

    return run


def raising(error: BaseException) -> Callable[[], None]:
    def callback() -> None:
        raise error

    return callback


@pytest.mark.parametrize("arguments", ["--help", "--version", "run --help", "doctor --help"])
def test_starts_without_torch_and_rich(arguments: str) -> None:
    program = f"""
import sys
from torch_lms.cli.main import main
try:
    main({arguments.split()!r})
except SystemExit as stopped:
    assert not stopped.code, stopped.code
heavy = [name for name in ("torch", "numpy", "rich") if name in sys.modules]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_its_module(name: str) -> None:
    assert find_spec(f"torch_lms.cli.{name}") is not None


def test_help_lists_every_command() -> None:
    shown = command_line("-h")
    assert shown.returncode == 0
    assert all(f"\n  {name} " in shown.stdout for name in [*cli.COMMANDS, "eval", "predict", "train"])


def test_other_packages_bring_commands_and_their_files_say_what_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brought").mkdir()
    (tmp_path / "brought/__init__.py").write_text("raise AssertionError('imported for --help')")
    (tmp_path / "brought/dance.py").write_text('"""Dance.\n\nMore of it."""\nimport nothing_of_the_kind\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert summary_of(point("dance", "brought.dance:command")) == "Dance."
    assert summary_of(point("dance", "nowhere.dance:command")) == ""


def test_a_command_whose_requirements_are_missing_says_what_to_install() -> None:
    with pytest.raises(UsageError, match=r"dance cannot be loaded .*pip install 'torch-lms\[workloads\]'"):
        loaded(point("dance", "nothing_of_the_kind:command"))


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, COMMANDS_GROUP)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("levels=3", "levels", 3),
        ("output-stride=8", "output_stride", 8),
        ("spacing=0.8,0.8,1.5", "spacing", (0.8, 0.8, 1.5)),
        ("skip_missing=True", "skip_missing", True),
        ("label=a=b", "label", "a=b"),
    ],
)
def test_values_by_name(given: str, name: str, value: object) -> None:
    option = click.Option(["--set"])
    assert named_values(click.Context(click.Command("c")), option, ("levels=1", given))[name] == value


def test_values_need_a_name() -> None:
    with pytest.raises(UsageError, match="--set takes NAME=VALUE; got 'levels'"):
        named_values(click.Context(click.Command("c")), click.Option(["--set"]), ("levels",))


def test_version_names_torch_and_python() -> None:
    assert command_line("--version").stdout.startswith("torch-lms ")


def test_unknown_command_is_usage() -> None:
    shown = command_line("dance")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "No such command 'dance'" in shown.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LmsError("no"), 1),
        (WorkingSetError("no"), 1),
        (UsageError("no"), 2),
        (SessionError("no"), 2),
        (KeyboardInterrupt(), 130),
        (SystemExit(7), 7),
    ],
)
def test_exit_codes(run: Run, error: BaseException, code: int) -> None:
    assert run(raising(error)) == code


def test_success_and_codes_returned(run: Run) -> None:
    assert run(lambda: None) is None
    assert run(lambda: 3) == 3


def test_error_is_one_line_without_traceback(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(LmsError("the disk is full:\n   free some space")))
    assert capsys.readouterr() == ("", "torch-lms: error: the disk is full: free some space\n")


def test_our_own_bugs_keep_their_traceback(run: Run) -> None:
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()))


@pytest.mark.parametrize("error", [click.UsageError("the user's own click"), LmsError("theirs"), KeyboardInterrupt()])
def test_what_runs_last_is_not_explained(run: Run, error: BaseException) -> None:
    with pytest.raises(type(error)):
        run(lambda: raising(error))


def test_reader_that_went_away_is_no_error() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "wb") as gone:
        program = [sys.executable, "-m", "torch_lms", "--help"]
        ended = subprocess.run(program, stdout=gone, stderr=subprocess.PIPE, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, b"")


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    path: Path
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Outer:
    inner: Inner
    losses: tuple[float, ...]


def test_to_plain_knows_what_results_are_made_of() -> None:
    value = Outer(Inner(Path("/a")), (0.5, float("nan"), float("inf")))
    assert to_plain(value) == {"inner": {"path": "/a", "colour": "red"}, "losses": [0.5, None, None]}
    assert to_plain({1: {"b", "a"}, Path("p"): True}) == {"1": ["a", "b"], "p": True}
    assert to_plain((np.int64(3), np.float32(0.5))) == [3, 0.5]


def test_to_plain_refuses_what_it_would_garble() -> None:
    with pytest.raises(TypeError, match="cannot write a bytes as JSON"):
        to_plain({"raw": b"12"})


def test_write_json_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": "é"}, "-")
    assert capsys.readouterr().out == '{\n  "a": "é"\n}\n'


def test_write_json_replaces_whole_files_only(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_json([1], target)
    with pytest.raises(TypeError):
        write_json([object()], target)
    assert json.loads(target.read_text()) == [1]
    assert os.listdir(tmp_path) == ["result.json"]


def test_write_json_follows_links_and_leaves_devices_alone(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_json([1], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real").read_text()) == [1]
    write_json([1], Path("/dev/null"))
    assert not Path("/dev/null").is_file()


def test_write_json_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match=r"cannot write .*No such file or directory"):
        write_json([1], tmp_path / "removed" / "result.json")


def test_json_option_is_checked_before_the_work(tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @json_option
    def probe(json_to: object) -> None: ...

    def attempt(target: str) -> str:
        assert run(raising(AssertionError("worked all the same")), "--json", target, options=tuple(probe.params)) == 2
        return capsys.readouterr().err

    assert "expected a file to write, got a directory" in attempt(str(tmp_path))
    assert "there is no directory" in attempt(str(tmp_path / "missing" / "file"))


def test_json_option_survives_a_change_of_directory(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @json_option
    def probe(json_to: object) -> None: ...

    monkeypatch.chdir(tmp_path)
    seen: list[object] = []
    run(lambda json_to: seen.append(json_to), "--json", "result.json", options=tuple(probe.params))
    assert seen == [tmp_path / "result.json"]


def test_people_read_standard_error_when_json_goes_to_standard_output() -> None:
    assert people_console("-").stderr
    assert not people_console(Path("file")).stderr
    assert not people_console(None).stderr
