"""Every ``torch-lms`` in a bash block of the documents: what is quick runs, the rest says what it needs, and parses."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from documents import DOCUMENTS, ROOT, Command, commands, files

from torch_lms.cli.main import group, main

COMMANDS = {document: list(commands(document)) for document in DOCUMENTS}
ALL = [command for found in COMMANDS.values() for command in found]


def test_they_are_found() -> None:
    """However they are written: after another, over two lines, under torchrun, with an environment."""
    found = {(command.document.name, command.words[0]) for command in ALL}
    assert {("README.md", "demo"), ("commands.md", "watch"), ("workloads.md", "eval")} <= found
    assert ("articles.md", "train") in found
    assert any("xeon-8xv100-16gb" in "".join(command.words) for command in ALL)
    assert sum(command.words[0] == "run" for command in COMMANDS[ROOT / "docs" / "gpu.md"]) == 1


@pytest.mark.parametrize("command", ALL, ids=str)
def test_options_are_such_as_there_are(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, *given = command.words
    if not name.startswith("-"):
        found = group.get_command(click.Context(group), name)
        assert found is not None, name
        for word in given:
            if word.endswith(".jsonl"):  # of the reader's, and must exist
                (tmp_path / word).touch()
        found.make_context(name, [*given])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_what_needs_nothing_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, in one folder: some read what others wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, text in files(document).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in COMMANDS[document]:
        if not command.needs:
            assert not ended(command.words), f"{command}: it fails. If it needs something: <!-- needs: WHAT -->"


def ended(words: tuple[str, ...]) -> object:
    """The exit code of ``torch-lms`` with these words; in a process of its own where it becomes another program."""
    if words[0] == "run":
        return subprocess.run([sys.executable, "-m", "torch_lms", *words], timeout=120, env=os.environ).returncode
    with pytest.raises(SystemExit) as error:
        main(words)
    return error.value.code
