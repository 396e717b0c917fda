"""How long, dense and documented the code is, beside the review of November 2026 and its anchors, as tables.

    python -m tests.house [--of FOLDER ...] [--fragments]

The definitions are those that give the review's figures at its commit, dd42d70:

* A function's lines are those from ``def`` to its end, without decorators; methods and inner functions count, too.
* A code line holds more than a comment or a docstring, and is not blank. A string that stands by itself, as below an
  attribute, is a docstring.
* AST nodes are statements, expressions and parameters: contexts, operators and the like are left out. They give 6.1
  where the review has 6.0, and the same as the review for FSDP2 and h11.
* A tuple assignment has a tuple on either side: ``a, b = c, d``.
* Comments are counted for each hundred lines that are neither blank nor a comment alone.
* Public names are classes, functions and methods of public classes that do not begin with "_".
* A docstring begins as a fragment if its first word is a preposition. The review counted fragments by reading, 61.

The anchor FSDP2 is ``_fully_shard`` of the PyTorch that is installed; the others are quoted from the review.
"""

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
LARGEST_CLASSES = 5
LONGEST_FUNCTIONS = 5

PREPOSITIONS = frozenset(
    [
        *("About", "After", "As", "At", "Before", "Beside", "By", "For", "From", "In", "Into"),
        *("Of", "On", "To", "Under", "Until", "While", "With", "Without"),
    ]
)

_NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class House:
    """What was measured in some files.

    Attributes:
        file_lines: of each file.
        functions: length and name of each function.
        classes: length, number of methods and name of each class.
        full_lines: lines that are neither blank nor a comment alone.
        code_lines: those of them that are no docstring.
        nodes, comprehensions, tuple_assignments, comments: how many there are.
        public: whether each public name has a docstring.
        fragments: first lines of docstrings that begin as a fragment.
    """

    file_lines: list[int] = field(default_factory=list)
    functions: list[tuple[int, str]] = field(default_factory=list)
    classes: list[tuple[int, int, str]] = field(default_factory=list)
    full_lines: int = 0
    code_lines: int = 0
    nodes: int = 0
    comprehensions: int = 0
    tuple_assignments: int = 0
    comments: int = 0
    public: list[bool] = field(default_factory=list)
    fragments: list[str] = field(default_factory=list)

    def add(self, name: str, source: str) -> None:
        """Measure one more file."""
        tree = ast.parse(source, name)
        lines = source.splitlines()
        self.file_lines.append(len(lines))
        self._add_lines(source, lines, tree)
        for node in ast.walk(tree):
            self._add_node(name, node)
        self.public += _documented(tree)

    def _add_lines(self, source: str, lines: list[str], tree: ast.Module) -> None:
        in_code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                self.comments += 1
            elif token.type not in _NOT_CODE:
                in_code.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(tree):
            if _is_docstring(node):
                in_code.difference_update(range(node.lineno, node.end_lineno + 1))
        self.code_lines += len(in_code)
        for line in lines:
            if line.strip() and not line.strip().startswith("#"):
                self.full_lines += 1

    def _add_node(self, file: str, node: ast.AST) -> None:
        if isinstance(node, ast.stmt | ast.expr | ast.arg):
            self.nodes += 1
        if isinstance(node, _COMPREHENSIONS):
            self.comprehensions += 1
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            self.tuple_assignments += isinstance(node.targets[0], ast.Tuple)
        if isinstance(node, _FUNCTIONS):
            self.functions.append((_length(node), f"{node.name} ({file})"))
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(child, _FUNCTIONS) for child in node.body)
            self.classes.append((_length(node), methods, f"{node.name} ({file})"))
        if isinstance(node, (*_DEFINITIONS, ast.Module)) and (text := ast.get_docstring(node)):
            first = text.split("\n")[0]
            if first.split()[0].strip(".,:") in PREPOSITIONS:
                self.fragments.append(f"{file}: {first}")

    def row(self) -> list[str]:
        """The figures, in the order of ``MEASURES``."""
        lengths = sorted(length for length, _ in self.functions)
        ninth = lengths[int(0.9 * len(lengths))]
        return [
            f"{len(self.file_lines)}",
            f"{median(self.file_lines):.0f} / {max(self.file_lines)}",
            f"{median(lengths):.0f} / {ninth} / {lengths[-1]}",
            f"{self.nodes / self.code_lines:.1f}",
            _rounded(1000 * self.comprehensions / self.code_lines),
            _rounded(1000 * self.tuple_assignments / self.code_lines),
            _rounded(100 * self.comments / self.full_lines),
            f"{100 * sum(self.public) / len(self.public):.0f} %",
            f"{len(self.fragments)}",
        ]


MEASURES = (
    "files",
    "file lines, median / max",
    "function lines, median / p90 / max",
    "AST nodes per code line",
    "comprehensions per 1,000 code lines",
    "tuple assignments per 1,000 code lines",
    "comments per 100 lines",
    "public names documented",
    "docstrings that begin with a preposition",
)

REVIEWED: dict[str, tuple[str, ...]] = {
    "review": ("222", "76 / 708", "6 / 16 / 89", "6.0", "44", "12", "1.1", "85 %", "-"),
    "FSDP2, review": ("-", "601 / 1138", "12 / 42 / 254", "3.8", "9", "2", "13.5", "35 %", "-"),
    "h11": ("-", "153 / 659", "7 / 39 / 64", "3.9", "1.6", "0", "46", "27 %", "-"),
    "zict": ("-", "133 / 287", "3 / 15 / -", "-", "-", "-", "-", "-", "-"),
    "memray": ("-", "74 / 815", "9 / 41 / -", "-", "-", "-", "-", "-", "-"),
}
"""The review's figures: of ours, at its commit, and of its anchors."""


def measure(folders: Sequence[Path]) -> House:
    """Measure all Python files in ``folders``."""
    house = House()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            house.add(str(file.relative_to(folder)), file.read_text())
    return house


def fully_shard() -> Path:
    """The folder of FSDP2 in the PyTorch that is installed, which is not imported."""
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    return Path(torch.origin).parent / "distributed" / "fsdp" / "_fully_shard"


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _is_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _documented(parent: ast.Module | ast.ClassDef) -> Iterator[bool]:
    """For each public name in ``parent``: whether it has a docstring."""
    for node in parent.body:
        if isinstance(node, _DEFINITIONS) and not node.name.startswith("_"):
            yield ast.get_docstring(node) is not None
            if isinstance(node, ast.ClassDef):
                yield from _documented(node)


def _rounded(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def figures(ours: House, anchor: House) -> Table:
    """The main table."""
    columns = {"now": ours.row(), **REVIEWED}
    columns["FSDP2, installed"] = anchor.row()
    table = Table(title="The house")
    table.add_column("")
    order = ("now", "review", "FSDP2, installed", "FSDP2, review", "h11", "zict", "memray")
    for name in order:
        table.add_column(name, justify="right")
    for number, name in enumerate(MEASURES):
        table.add_row(name, *(columns[column][number] for column in order))
    return table


def largest(house: House) -> Iterator[str]:
    """The longest functions and the largest classes, a line each."""
    yield "Longest functions (review: forecast 89, bound_seconds 68, plan.command 57, trace_step 55, Session.stats 48):"
    for lines, name in sorted(house.functions, reverse=True)[:LONGEST_FUNCTIONS]:
        yield f"  {lines:4} lines: {name}"
    yield "Largest classes (review: Pager 69 methods in 659 lines, Session 52 in 574):"
    for lines, methods, name in sorted(house.classes, reverse=True)[:LARGEST_CLASSES]:
        yield f"  {lines:4} lines, {methods:2} methods: {name}"


def main() -> int:
    console = Console(width=150)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", metavar="FOLDER", nargs="+", type=Path, default=[SOURCES], help="instead of src")
    parser.add_argument("--fragments", action="store_true", help="list the docstrings that begin with a preposition")
    chosen = parser.parse_args()
    ours = measure(chosen.of)
    if not ours.functions:
        parser.error(f"there is no function in {', '.join(map(str, chosen.of))}")
    console.print(figures(ours, measure([fully_shard()])))
    for line in largest(ours):
        console.print(line)
    if chosen.fragments:
        for fragment in ours.fragments:
            console.print(f"  {fragment}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
