"""What the documents say is what the code does, as far as that can be compared."""

import ast
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from source_tree import FLOORS, floor_of, parameters, sources

from tests.sweep.exceptions import CHANGED_BY_ANY_MODE
from torch_lms.bench.ways import WAYS
from torch_lms.cli.main import COMMANDS, group
from torch_lms.errors import LmsError
from torch_lms.machine import names
from torch_lms.residency import TRANSITIONS, State, transition_table

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "docs" / "design.md").read_text()
README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
DOCUMENTS = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("docs/design.md", "docs/reliability.md", "docs/errors.md", "docs/planning.md"),
    *("docs/machines.md", "docs/workloads.md", "docs/adding-a-workload.md", "docs/articles.md", "docs/validation.md"),
    *(
        "docs/bench.md",
        "docs/report.md",
        "docs/reference.md",
        "docs/commands.md",
        "docs/limits.md",
        "docs/compatibility.md",
    ),
]

PATHS = re.compile(r"(?<![\w/.])(?:src|tests|docs|benchmarks|examples|\.ci|\.github)/[\w/.-]*\w")
"""Paths below the root, in prose or in code."""


def diagram() -> str:
    """The transitions between states, for GitHub to draw."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, trigger), after in TRANSITIONS.items():
        if state is not after:
            arrows.setdefault((state, after), []).append(trigger.value)
    lines = [f"    {a.value} --> {b.value}: {', '.join(triggers)}" for (a, b), triggers in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> resident", *lines, "    dead --> [*]", "```"])


def marked(name: str, text: str = DESIGN) -> str:
    """What stands in a document between <!-- begin: NAME --> and <!-- end: NAME -->."""
    match = re.search(rf"<!-- begin: {name} -->\n(.*?)\n<!-- end: {name} -->", text, re.DOTALL)
    assert match is not None
    return match[1]


def block(marker: str, text: str = README) -> str:
    """The fenced block after a marker."""
    match = re.search(rf"^<!-- {marker} -->\n```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert match is not None, f"no block after <!-- {marker} -->"
    return match[1]


def test_the_table_of_transitions() -> None:
    assert marked("transitions") == transition_table()


def test_the_diagram_of_states() -> None:
    assert marked("states") == diagram()


def test_every_note_that_the_code_cites_is_written() -> None:
    written = set(re.findall(r"^\* \*\*(N\d+) ", DESIGN, re.MULTILINE))
    cited = {
        note: file.name for file in (ROOT / "src").rglob("*.py") for note in re.findall(r"\bN\d+\b", file.read_text())
    }
    assert cited.keys() <= written, {note: file for note, file in cited.items() if note not in written}


def test_every_floor_is_named() -> None:
    floors = marked("floors")
    for floor in FLOORS:
        assert f"`{floor}" in floors, floor
    for floor in {floor_of(name) for name in sources() if name}:
        assert re.search(rf"^\| `{floor}", floors, re.MULTILINE), f"{floor} exists, and has no row"


def test_the_life_of_a_tensor_names_what_there_is() -> None:
    rows = marked("life of a tensor").splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        path, name = re.findall(r"`([^`]+)`", row.strip("|").split("|")[-1])
        tree = ast.parse((ROOT / "src" / "torch_lms" / path).read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        assert name in names, f"{path} has no {name}"


def test_what_any_mode_changes_is_listed() -> None:
    listed = re.search(r"<!-- modes -->\n(.*?)\n<!-- /modes -->", (ROOT / "docs/reliability.md").read_text(), re.DOTALL)
    rows = [f"| `{name}` | {why} |" for name, why in CHANGED_BY_ANY_MODE.items()]
    assert listed is not None
    assert listed[1].splitlines()[2:] == rows


def test_every_knob_is_explained() -> None:
    for name, default in parameters("enable").items():
        shown = default.replace("'", '"')
        assert f"| `{name}` | `{shown}` |" in REFERENCE, name


def test_every_statistic_is_explained() -> None:
    module = sources()["runtime.stats"]
    stats = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Stats")
    fields = [ast.unparse(node.target) for node in stats.body if isinstance(node, ast.AnnAssign)]
    assert re.findall(r"^\| `(\w+)` \|", marked("statistics", REFERENCE), re.MULTILINE) == fields


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    document = ROOT / name
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_paths_for_contributors_exist() -> None:
    """The configurations that contributors use are read, too."""
    files = ["CONTRIBUTING.md", "noxfile.py", ".github/workflows/ci.yml"]
    named = {path: file for file in files for path in PATHS.findall((ROOT / file).read_text())}
    assert len(named) > 40
    missing = [f"{file} names {path}" for path, file in named.items() if not (ROOT / path).exists()]
    assert not missing, "\n".join(missing)


def test_modules_for_contributors_exist() -> None:
    """What is run as ``python -m tests.NAME`` is a module, or a package with a main program."""
    for name in re.findall(r"-m tests\.(\w+)", (ROOT / "CONTRIBUTING.md").read_text()):
        tests = ROOT / "tests"
        assert (tests / f"{name}.py").exists() or (tests / name / "__main__.py").exists() or (tests / name).is_dir()


def test_ten_typical_changes_have_files_and_tests() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Where do I change ...?")[1].split("\n\n")[1]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    assert len(rows) >= 10
    for change, begin, _, covered in rows:
        assert "`src/" in begin, change
        assert "`tests/" in covered, change


def test_sessions_that_contributors_are_told_of_exist() -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    assert {"tests", "lint", "types", "torch_versions", "bench"} <= sessions


def commands_in(name: str) -> list[str]:
    """The lines of a document's bash blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)
    return [" ".join(line.split()) for block in blocks for line in block.replace("\\\n", "").splitlines()]


@pytest.mark.parametrize("line", commands_in("docs/articles.md"))
def test_commands_name_what_there_is(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "torchrun":
        words = ["torch-lms", *words[words.index("torch_lms") + 1 :]]
    program, name, *given = words
    if program == "torch-lms" and name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        chosen = command.make_context(name, [*given]).params
        if name == "bench":
            assert set(chosen["against"].split(",")) <= WAYS.keys()
        assert set(chosen.get("machines", "this").split(",")) <= {"this", *names()}
    else:  # what imports torch is read instead
        ours = [f"src/torch_lms_workloads/commands/{file}.py" for file in (name, "options")]
        places = [name] if program == "python" else [*ours, "src/torch_lms/output.py"]
        source = "".join((ROOT / place).read_text() for place in places)
        assert all(f'"{word}"' in source for word in given if word.startswith("--"))
    if name in ("plan", "bench", "train", "eval"):
        assert (ROOT / f"src/torch_lms_workloads/catalogue/{given[0]}.py").exists()


CARDS = ["16 GB, PCIe 4", "24 GB, PCIe 4", "24 GB, PCIe 5", "48 GB, PCIe 4", "80 GB, PCIe 5"]


def seconds(value: float | None) -> str:
    if value is None:
        return "no"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def cell_of_a_card(row: dict[str, Any]) -> str:
    planned = [seconds(row["planned_s"]), seconds(row["planned_checkpointed_s"])]
    stock = f", stock {seconds(row['stock_s'])}" if row["stock_s"] is not None else ""
    return ("no" if planned == ["no", "no"] else " / ".join(planned)) + stock


def test_the_table_of_fine_tuning() -> None:
    """It is that of the results."""
    rows = json.loads((ROOT / "benchmarks/results/fine-tuning-simulated.json").read_text())
    steps: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        step = (row["way"], f"{row['tokens']:,}", "in pieces" if row["in_pieces"] else "whole")
        steps.setdefault(step, {})[row["card"]] = row
    lines = []
    for step, by_card in steps.items():
        sizes = [f"{by_card[CARDS[0]][size] / 1e9:.0f} GB" for size in ("demand_bytes", "working_set_bytes")]
        lines.append(f"| {' | '.join([*step, *sizes, *(cell_of_a_card(by_card[card]) for card in CARDS)])} |")
    page = (ROOT / "docs/tutorials/fine-tuning.md").read_text()
    assert marked("steps", page).splitlines()[2:] == lines


def test_what_ci_runs_is_in_the_readme() -> None:
    assert len(block("ci:setup").splitlines()) <= 2
    assert len(block("ci:test").splitlines()) == 1


def test_the_example_is_short() -> None:
    assert sum(map(bool, block("example").splitlines())) <= 10


@pytest.mark.parametrize("name", ["README.md", "docs/limits.md", "docs/reference.md"])
def test_the_errors_that_are_named_exist(name: str) -> None:
    known = {kind.__name__ for kind in all_below(LmsError)}
    assert set(re.findall(r"`(\w+Error)`", (ROOT / name).read_text())) <= known


def all_below(kind: type[Exception]) -> set[type[Exception]]:
    return {kind} | {other for child in kind.__subclasses__() for other in all_below(child)}


def test_ci_is_a_script_that_bash_understands() -> None:
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "run"]).returncode == 0
