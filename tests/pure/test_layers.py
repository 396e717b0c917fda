"""The floors of the house: who may import whom, read from the sources without running them. See docs/design.md."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from source_tree import FLOORS, SOURCES, WORKLOADS, floor_of, name_of, parameters, sources

MOST_LINES = 800

MAY_IMPORT_TORCH = frozenset(
    {*("native", "stores", "capture", "runtime", "compiler", "compat"), *("keras", "transformers", "lightning")}
)
"""At the top of a file, if only by what it imports."""

MAY_IMPORT_TORCH_INSIDE = frozenset({"cli", "targets", "answers", "bench", "notebook"})
"""Inside a function that does its work, so that the command line starts without torch."""

SCRIPTS_WITH_TORCH = frozenset(
    {"demo.train", *(f"bench.child.{file}" for file in ("memory", "together", "hooks", "around", "build", "main"))}
)
"""The programs that the demo and ``bench`` run in processes of their own."""

USERS_OF_THE_PACKAGE = frozenset({"cli", "demo", "figures", "keras", "transformers", "lightning"})
"""They import ``torch_lms`` as its users do. Everybody else imports submodules: the package is what is made of them."""

PUBLIC_TO_WORKLOADS = frozenset(
    {
        *("torch_lms", "torch_lms.errors", "torch_lms.units"),
        *("torch_lms.output", "torch_lms.named_values", "torch_lms.targets", "torch_lms.answers", "torch_lms.live"),
    }
)
"""What the second package may import of this one, and a package of a user's that brings commands, too."""

WITHOUT_TORCH = [
    "torch_lms",
    "torch_lms.errors",
    "torch_lms.renamed",
    "torch_lms.units",
    "torch_lms.import_hooks",
    "torch_lms.output",
    "torch_lms.named_values",
    "torch_lms.plugins",
    "torch_lms.trace",
    "torch_lms.machine",
    "torch_lms.residency",
    "torch_lms.policy",
    "torch_lms.pager",
    "torch_lms.timeline",
    "torch_lms.engine",
    "torch_lms.sim",
    "torch_lms.planner",
    "torch_lms.report",
    "torch_lms.targets",
    "torch_lms.answers",
    "torch_lms.bench",
    "torch_lms.demo",
    "torch_lms.figures",
    "torch_lms.live",
    "torch_lms.notebook",
    "torch_lms.cli.main",
]

ENABLE = ["limit", "min_size", "host_limit", "spill_dir", "policy", "recompute", "exact", "device", "tune"]
"""All that can be set. A new knob must be something that a user can have an opinion on: argue for it first."""


@dataclass(frozen=True)
class Import:
    """``importer`` (a module's name without "torch_lms.") imports ``module`` and from it ``names``.

    ``deferred``: inside a function, or for the type checker only.
    """

    importer: str
    line: int
    module: str
    names: tuple[str, ...]
    deferred: bool

    def __str__(self) -> str:
        return f"torch_lms.{self.importer}, line {self.line}: imports {self.module}"


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for name, tree in sources().items() for found in imports_in(name, tree, deferred=False))


def imports_in(importer: str, node: ast.AST, deferred: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import():
                for alias in child.names:
                    yield Import(importer, child.lineno, alias.name, (), deferred)
            case ast.ImportFrom():
                assert child.level == 0, f"{importer}, line {child.lineno}: imports are absolute"
                yield Import(importer, child.lineno, child.module or "", tuple(a.name for a in child.names), deferred)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from imports_in(importer, child, deferred=True)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from imports_in(importer, child, deferred=True)
            case _:
                yield from imports_in(importer, child, deferred)


def targets(found: Import) -> Iterator[str]:
    """The modules of ours that an import means, without "torch_lms."; "" is the package itself."""
    if found.module.split(".")[0] != "torch_lms":
        return
    base = found.module.removeprefix("torch_lms").removeprefix(".")
    if not found.names:
        yield base
    for name in found.names:
        inner = f"{base}.{name}".removeprefix(".")
        yield inner if inner in sources() else base


# -- floors ----------------------------------------------------------------------------------------------------------


def test_every_module_stands_on_a_floor() -> None:
    assert {floor_of(name) for name in sources() if name} <= FLOORS.keys()


def test_no_floor_imports_one_that_imports_it() -> None:
    for floor, below in FLOORS.items():
        for other in below:
            assert floor not in FLOORS[other]


def test_nobody_imports_from_above() -> None:
    wrong = [
        f"{found} ({floor_of(found.importer)} may import: {', '.join(sorted(FLOORS[floor_of(found.importer)]))})"
        for found in imports()
        if found.importer
        for target in targets(found)
        if target and floor_of(target) not in {floor_of(found.importer), *FLOORS[floor_of(found.importer)]}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_loads_nothing() -> None:
    assert [
        str(found) for found in imports() if not found.importer and not found.deferred and any(targets(found))
    ] == []


def test_only_the_command_line_the_demo_and_callbacks_use_the_package_as_its_users_do() -> None:
    wrong = [
        str(found)
        for found in imports()
        if found.importer and floor_of(found.importer) not in USERS_OF_THE_PACKAGE and "" in set(targets(found))
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_the_package_that_it_is_part_of() -> None:
    """``torch_lms.pager.pager`` imports ``torch_lms.pager.events``, not ``torch_lms.pager``, which imports it."""
    packages = {name_of(file) for file in SOURCES.rglob("__init__.py")} - {""}
    wrong = [
        str(found)
        for found in imports()
        for target in targets(found)
        if target in packages and found.importer.startswith(f"{target}.")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_import_cycle() -> None:
    """Not even one that a lazy import hides."""
    below: dict[str, set[str]] = {name: set() for name in sources()}
    for found in imports():
        if found.importer:  # the package loads its parts when they are asked for
            below[found.importer] |= {target for target in targets(found) if target and target != found.importer}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a cycle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in done:
            for target in sorted(below[name]):
                visit(target, (*path, name))
            done.add(name)

    for name in below:
        visit(name, ())


# -- torch -----------------------------------------------------------------------------------------------------------


def test_torch_is_imported_only_where_bytes_move() -> None:
    wrong = [
        str(found)
        for found in imports()
        if found.module.split(".")[0] == "torch"
        and floor_of(found.importer) not in MAY_IMPORT_TORCH
        and not (floor_of(found.importer) in MAY_IMPORT_TORCH_INSIDE and found.deferred)
        and found.importer not in SCRIPTS_WITH_TORCH
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_decisions_start_without_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_the_list_of_those_without_torch_is_whole() -> None:
    floors = {name.split(".")[1] for name in WITHOUT_TORCH if "." in name}
    existing = {floor_of(name) for name in sources() if name} - {"__main__"}
    assert floors == existing - MAY_IMPORT_TORCH


# -- the second package ----------------------------------------------------------------------------------------------


WORKLOADS_LOWEST_FIRST = [
    *("edges", "samples", "losses", "dual_task", "data"),
    *("nets", "workload", "catalogue", "training", "prediction", "commands"),
]


def imports_of_workloads() -> Iterator[tuple[str, Import]]:
    """With the file or folder of the package that imports."""
    for file in sorted(WORKLOADS.rglob("*.py")):
        inner = file.relative_to(WORKLOADS).with_suffix("")
        for found in imports_in(str(inner), ast.parse(file.read_text(), str(file)), deferred=False):
            yield inner.parts[0], found


def test_workloads_are_found_and_never_imported() -> None:
    assert [str(found) for found in imports() if found.module.split(".")[0] == WORKLOADS.name] == []


def test_workloads_use_the_package_as_its_users_do() -> None:
    """They use the public modules alone, and nothing of the command line."""
    assert [
        f"{found.importer}, line {found.line}: imports {found.module}"
        for _, found in imports_of_workloads()
        if found.module.split(".")[0] == SOURCES.name and found.module not in PUBLIC_TO_WORKLOADS
    ] == []


def test_no_workload_imports_from_above() -> None:
    known = {file.relative_to(WORKLOADS).with_suffix("").parts[0] for file in WORKLOADS.rglob("*.py")}
    assert known - {"__init__"} == set(WORKLOADS_LOWEST_FIRST)
    wrong = [
        f"{found.importer}, line {found.line}: imports {found.module}"
        for floor, found in imports_of_workloads()
        if floor != "__init__" and found.module.startswith(f"{WORKLOADS.name}.")
        if rank(found.module.split(".")[1]) > rank(floor)
    ]
    assert not wrong, "\n".join(wrong)


def rank(floor: str) -> int:
    return WORKLOADS_LOWEST_FIRST.index(floor)


# -- habits ----------------------------------------------------------------------------------------------------------


def test_the_knobs_are_counted() -> None:
    assert list(parameters("enable")) == ENABLE


def test_a_session_takes_what_enable_takes() -> None:
    assert parameters("session") == parameters("enable")


def test_every_knob_may_be_left_alone() -> None:
    assert all(parameters("enable").values())


@pytest.mark.parametrize(
    "file",
    sorted([*SOURCES.rglob("*.py"), *WORKLOADS.rglob("*.py")]),
    ids=lambda file: str(file.relative_to(SOURCES.parent)),
)
def test_files_are_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) < MOST_LINES
