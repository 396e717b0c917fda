"""The documents as tests read them: commands in their fenced blocks, headings, links."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BASH = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^<!-- (?:file: (\S+)|(example)) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_NEEDS = re.compile(r"<!-- needs: (.+?) -->")
_HEADING = re.compile(r"^#+ (.+?)\s*$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Command:
    """A line of a document that calls ``torch-lms``.

    Attributes:
        document: where it stands.
        line: its number there.
        words: what follows ``torch-lms``.
        needs: what it takes beside this package and a few seconds, as a marker before its block says; "" if nothing.
    """

    document: Path
    line: int
    words: tuple[str, ...]
    needs: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def commands(document: Path) -> Iterator[Command]:
    """Those in its bash blocks, in their order."""
    text = document.read_text()
    for block in _BASH.finditer(text):
        before = text[: block.start()].splitlines()
        marker = _NEEDS.fullmatch(before[-1]) if before else None
        for offset, line in _lines(block[1]):
            for words in _calls(line):
                yield Command(document, len(before) + 2 + offset, words, marker[1] if marker is not None else "")


def _lines(block: str) -> Iterator[tuple[int, str]]:
    """Each command of a block, with the number of its first line: some go on after a backslash."""
    begun, first = "", 0
    for number, line in enumerate(block.splitlines()):
        if not begun:
            first = number
        if line.endswith("\\"):
            begun += line[:-1]
            continue
        yield first, begun + line
        begun = ""


def _calls(line: str) -> Iterator[tuple[str, ...]]:
    """The calls of ``torch-lms`` in a line of a shell."""
    for part in line.split("&&"):
        words = shlex.split(part, comments=True)
        while words and "=" in words[0]:  # set in its environment
            words = words[1:]
        if words and words[0] == "torchrun" and "torch_lms" in words:
            words = ["torch-lms", *words[words.index("torch_lms") + 1 :]]
        if words and words[0] == "torch-lms":
            yield tuple(words[1:])


def files(document: Path) -> dict[str, str]:
    """Files that its commands use, by name: fenced blocks after ``<!-- file: NAME -->``."""
    return {name or f"{example}.py": text for name, example, text in _FILE.findall(document.read_text())}


def slugs(document: Path) -> dict[str, str]:
    """The anchor of each heading on GitHub, and what the site has for it."""
    found: dict[str, str] = {}
    for heading in _HEADING.findall(_FENCED.sub("", document.read_text())):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "").lower()
        kept = re.sub(r"[^\w\- ]", "", plain)
        found[kept.replace(" ", "-")] = re.sub(r"[-\s]+", "-", kept.strip())
    return found


def links(document: Path) -> list[str]:
    """Where it links to, but for the web."""
    return _LINK.findall(_FENCED.sub("", document.read_text()))
