"""The sources of ``torch_lms``, read without running them, and the floors of its house."""

import ast
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "torch_lms"
WORKLOADS = SOURCES.with_name("torch_lms_workloads")

GROUND = frozenset({"errors", "renamed", "units", "import_hooks"})
LOW = GROUND | {"trace", "machine"}
DECISIONS = LOW | {"residency", "policy"}
MODELS = DECISIONS | {"pager", "timeline"}
MECHANISMS = MODELS | {"engine", "stores", "capture", "native"}

FLOORS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "renamed": frozenset(),
    "import_hooks": frozenset(),
    "units": frozenset({"errors"}),
    "live": GROUND,
    "native": GROUND,
    "trace": GROUND,
    "machine": GROUND,
    "residency": LOW,
    "policy": LOW | {"residency"},
    "pager": DECISIONS,
    "timeline": DECISIONS,
    "engine": MODELS,
    "sim": MODELS | {"engine"},
    "planner": MODELS | {"engine", "sim"},
    "stores": MODELS,
    "capture": MODELS | {"engine"},
    "runtime": MECHANISMS | {"sim", "planner", "live"},
    "report": MODELS | {"engine", "sim", "planner", "output"},
    "compiler": frozenset({"capture", "runtime"}),
    "compat": MECHANISMS | {"planner", "runtime"},
    "notebook": frozenset({"units", "live", "runtime"}),
    "output": frozenset(),
    "named_values": frozenset({"errors"}),
    "plugins": frozenset({"errors"}),
    "targets": GROUND | {"plugins", "trace", "capture"},
    "answers": LOW | {"planner", "runtime", "targets"},
    "bench": MECHANISMS | {"planner", "runtime", "targets", "answers", "output"},
    "demo": frozenset({"units", "output", "report"}),
    "figures": frozenset(),
    "keras": frozenset({"errors", "figures"}),
    "transformers": frozenset({"figures", "targets"}),
    "lightning": frozenset({"figures", "targets"}),
    "cli": MECHANISMS
    | {"planner", "runtime", "sim", "report", "compat", "live"}
    | {"output", "named_values", "plugins", "targets", "answers", "bench", "demo"},
    "__main__": frozenset({"cli"}),
}
"""What each floor may import beside itself."""


def name_of(file: Path) -> str:
    parts = file.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module: str) -> str:
    return module.split(".")[0]


@cache
def sources() -> dict[str, ast.Module]:
    """All modules; the package itself is under ""."""
    return {name_of(file): ast.parse(file.read_text(), str(file)) for file in sorted(SOURCES.rglob("*.py"))}


def parameters(function: str) -> dict[str, str]:
    """Names and defaults of what a function of the public API takes."""
    node = next(n for n in sources()["runtime.api"].body if isinstance(n, ast.FunctionDef) and n.name == function)
    arguments = node.args
    assert arguments.vararg is arguments.kwarg is None
    plain, only_named = arguments.posonlyargs + arguments.args, arguments.kwonlyargs
    defaults = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    return {a.arg: ast.unparse(d) if d else "" for a, d in zip([*plain, *only_named], defaults, strict=True)}
