"""The README and the documents: names exist, Python runs as it stands, and the README's example pages."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")  # before Keras is imported, by whatever test

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = DOCUMENTS[0].read_text()

_FENCED = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NOT_RUN = re.compile(r"<!-- not run: ?(.*?) ?-->")
_CODE = re.compile(r"^```\w*\n.*?^```$|`[^`]+`", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"\btorch_lms(?:_workloads)?(?:\.[A-Za-z_]\w*)+")
_FILES = (".py", ".toml", ".md")


class Block(NamedTuple):
    """Fenced Python in a document. ``not_run`` is the reason why it is not run, or None."""

    document: Path
    line: int
    program: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.document.name}:{self.line}"


def blocks() -> Iterator[Block]:
    for document in DOCUMENTS:
        text = document.read_text()
        for fenced in _FENCED.finditer(text):
            before = text[: fenced.start()].splitlines()
            if before and before[-1] == "<!-- example -->":
                continue  # test_the_example runs it
            marker = _NOT_RUN.fullmatch(before[-1]) if before else None
            yield Block(document, len(before) + 1, fenced[1], marker[1] if marker is not None else None)


def mentioned() -> Iterator[tuple[str, str]]:
    """Each document, and the dotted names in its code."""
    for document in DOCUMENTS:
        found = {name for code in _CODE.findall(document.read_text()) for name in _NAME.findall(code)}
        for name in sorted(found):
            if not name.endswith(_FILES):
                yield document.name, name


BLOCKS = list(blocks())


def run(program: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, timeout=240, cwd=folder)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_python_runs_or_says_why_not(block: Block, tmp_path: Path) -> None:
    if block.not_run is not None:
        assert len(block.not_run) > 5, f"{block}: <!-- not run: REASON --> wants a reason"
        compile(block.program, str(block), "exec")
        return
    ended = run(block.program, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_what_is_not_run_has_its_marker_in_the_right_place() -> None:
    marked = sum(len(_NOT_RUN.findall(document.read_text())) for document in DOCUMENTS)
    found = sum(block.not_run is not None for block in BLOCKS)
    assert marked == found, "a marker <!-- not run: REASON --> stands on the line before a ```python block"


@pytest.mark.parametrize(("document", "name"), list(mentioned()))
def test_a_name_that_is_mentioned_exists(document: str, name: str) -> None:
    """A program that imports the package, or what the document says, finds it by that name."""
    if name in entry_point_groups():
        return
    parts = name.split(".")
    depth = max(number for number in range(1, len(parts) + 1) if is_module(".".join(parts[:number])))
    module = ".".join(parts[:depth])
    found = import_module(module)
    for part in parts[depth:]:
        assert hasattr(found, part), f"{document} mentions {name}, and {module} has no {part}"
        found = getattr(found, part)
    if parts[0] == "torch_lms" and 1 < depth < len(parts):
        text = next(file for file in DOCUMENTS if file.name == document).read_text()
        says_so = f"import {module}" in text or f"from {module} import" in text
        assert says_so, f"{document} mentions {name}, which needs `import {module}`: say so there"


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the name before its last dot is no package
        return False


def entry_point_groups() -> set[str]:
    """They look like names of modules, and are none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["entry-points"])


def test_the_example(tmp_path: Path) -> None:
    example = re.search(r"<!-- example -->\n```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    ended = run(example[1], tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"LMS \(\w+, \w+\): 3 steps, demand \d+ MB, limit 150 MB", ended.stdout)
    moved = re.search(r"in (\d+) evictions", ended.stdout)
    assert moved is not None
    assert int(moved[1]) > 0
