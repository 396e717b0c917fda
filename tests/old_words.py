"""Where words still stand that docs/design.md replaces by others.

    python -m tests.old_words [--lines]

The table in the design, between ``<!-- begin: old words -->`` and its end, says what is replaced, by what, and as what
it is looked for:

* word: anywhere, as a word of prose or a part of an identifier, in any case; also in the names of files. Several words
  are looked for one after the other: "made again" is found in ``made_again``, ``MadeAgain``, "made-again" and across
  the end of a line. With a hyphen it is looked for as it is: "stand-in" is not found in "they stand in a row".
* name: as a whole identifier, in code or between backticks.
* part: as one part or several of an identifier, in code or between backticks.
* prefix: at the beginning of an identifier, in code or between backticks.
* file: as the name of a file of Python.

"name" and "part" leave words of English alone: a user may be told something, but no class is called ``Told``.
"""

import argparse
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DESIGN = ROOT / "docs" / "design.md"
FOLDERS = ("src", "tests", "benchmarks", "examples")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
KINDS = ("word", "name", "part", "prefix", "file")

NOT_READ = frozenset({"tests/old_words.py", "tests/pure/test_old_words.py"})
"""They are about old words."""

ALLOWED: dict[tuple[str, str], str] = {
    ("src/torch_lms/policy/plan.py", "remade"): "an old name that goes on working",
    ("tests/pure/test_renamed.py", "remade"): "the same",
}
"""File and old word: why it may stand there."""

_TABLE = re.compile(r"<!-- begin: old words -->\n(.*?)\n<!-- end: old words -->", re.DOTALL)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_BETWEEN = re.compile(r"[\s_#-]*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_QUOTED = re.compile(r"^```\w*\n.*?^```$|``[^`]+``|`[^`\n]+`", re.DOTALL | re.MULTILINE)


class Old(NamedTuple):
    """A word that is replaced ``instead``, and as what it is looked for (see above)."""

    word: str
    instead: str
    kind: str


class Hit(NamedTuple):
    """An old word in a line of a file."""

    file: str
    line: int
    old: Old

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old.word} ({self.old.kind}); write {self.old.instead}"


def old_words(design: str) -> list[Old]:
    """The table in the text of the design.

    Raises:
        ValueError: there is none, or a row is not understood.
    """
    table = _TABLE.search(design)
    if table is None:
        raise ValueError("docs/design.md has no table between <!-- begin: old words --> and <!-- end: old words -->")
    found: list[Old] = []
    for row in table[1].splitlines()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) != 3 or cells[2] not in KINDS:
            raise ValueError(f"a row of old words has an old word, one instead, and one of {KINDS}; got {row!r}")
        found += [Old(word.strip(" `"), cells[1], cells[2]) for word in cells[0].split(",")]
    return found


def hits(olds: list[Old]) -> list[Hit]:
    """All places in code and documents."""
    found: list[Hit] = []
    for file in _files():
        name = str(file.relative_to(ROOT))
        for line, old in hits_in(file.name, file.read_text(), olds):
            if (name, old.word) not in ALLOWED:
                found.append(Hit(name, line, old))
    return found


def _files() -> Iterator[Path]:
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if str(file.relative_to(ROOT)) not in NOT_READ:
                yield file
    for pattern in DOCUMENTS:
        yield from sorted(ROOT.glob(pattern))


def hits_in(name: str, text: str, olds: list[Old]) -> Iterator[tuple[int, Old]]:
    """Lines of ``text``, of a file called ``name``, and the old words in them."""
    text = _TABLE.sub(lambda table: "\n" * table[0].count("\n"), text)
    is_code = name.endswith(".py")
    words = _words(text)
    identifiers = list(_identifiers(text, is_code))
    for old in olds:
        if old.kind == "file":
            if name == old.word:
                yield 1, old
            for match in re.finditer(rf"\b{re.escape(old.word)}\b", text):
                yield _line(text, match.start()), old
        elif old.kind == "word":
            stem = name.removesuffix(".py")
            if list(_phrase(stem, _words(stem), old.word)):
                yield 1, old
            for start in _phrase(text, words, old.word):
                yield _line(text, start), old
        else:
            for line, identifier in identifiers:
                if _is_in(old, identifier):
                    yield line, old


def _words(text: str) -> list[tuple[str, int, int]]:
    return [(match[0].lower(), match.start(), match.end()) for match in _PARTS.finditer(text)]


def _phrase(text: str, words: list[tuple[str, int, int]], old: str) -> Iterator[int]:
    """Where the words of ``old`` follow each other, with a hyphen between them if ``old`` has one."""
    phrase = re.split("[ -]", old)
    between = re.compile("-") if "-" in old else _BETWEEN
    for number, (first, _, _) in enumerate(words):
        if first != phrase[0]:  # most are not
            continue
        found = words[number : number + len(phrase)]
        if [word for word, _, _ in found] != phrase:
            continue
        gaps = [text[one[2] : other[1]] for one, other in pairwise(found)]
        if all(between.fullmatch(gap) for gap in gaps):
            yield found[0][1]


def _identifiers(text: str, is_code: bool) -> Iterator[tuple[int, str]]:
    """Identifiers of code, and those between backticks, with their lines."""
    if is_code:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
            elif token.type in (tokenize.STRING, tokenize.COMMENT):
                for line, name in _quoted(token.string):
                    yield token.start[0] + line - 1, name
    else:
        yield from _quoted(text)


def _quoted(text: str) -> Iterator[tuple[int, str]]:
    for quoted in _QUOTED.finditer(text):
        for match in _IDENTIFIER.finditer(quoted[0]):
            yield _line(text, quoted.start() + match.start()), match[0]


def _is_in(old: Old, identifier: str) -> bool:
    if old.kind == "name":
        return identifier == old.word
    if old.kind == "prefix":
        return identifier.startswith(old.word)
    parts = "_".join(_PARTS.findall(identifier)).lower()
    return f"_{old.word}_" in f"_{parts}_"


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", action="store_true", help="print every line, too")
    chosen = parser.parse_args()
    olds = old_words(DESIGN.read_text())
    found = hits(olds)
    if chosen.lines:
        for hit in found:
            print(hit)
    counts = Counter(hit.old for hit in found)
    for old in olds:
        print(f"{counts[old]:5}  {old.word} ({old.kind}): {old.instead}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
