"""What a test file of another version imports, and the installed PyTorch has no more."""

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any


class Absent:
    """Stands in for whatever was removed, so that the rest of a file can be imported.

    It is false, has no elements, and as a decorator it changes nothing. A test that needs more fails plain.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and isinstance(args[0], FunctionType) else self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __radd__(self, other: Any) -> Any:
        return other


def fill_in(file: Path) -> list[str]:
    """Let what ``file`` imports from ``torch`` exist. Returns what did not."""
    missing = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            module = _module(str(node.module))
            for alias in node.names:
                if not _has(module, alias.name):
                    setattr(module, alias.name, Absent())
                    missing.append(f"{node.module}.{alias.name}")
    return missing


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        sys.modules[name] = ModuleType(name)
        return sys.modules[name]


def _has(module: ModuleType, name: str) -> bool:
    if hasattr(module, name) or name == "*":
        return True
    try:
        import_module(f"{module.__name__}.{name}")
    except ImportError:
        return False
    return True
