"""Commands and workloads that other packages bring, found by their entry points."""

import ast
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError

COMMANDS_GROUP = "torch_lms.commands"
WORKLOADS_GROUP = "torch_lms.workloads"


def installed(group: str) -> list[metadata.EntryPoint]:
    """The entry points of ``group`` that are installed, sorted by name."""
    return sorted(metadata.entry_points(group=group), key=lambda point: point.name)


def loaded(point: metadata.EntryPoint) -> Any:
    """What ``point`` names: a command, or a workload.

    Raises:
        UsageError: what it imports is not installed.
    """
    try:
        return point.load()
    except ImportError as error:
        raise UsageError(
            f"{point.name} cannot be loaded ({error}): install its requirements, pip install 'torch-lms[workloads]'"
        ) from error


def summary_of(point: metadata.EntryPoint) -> str:
    """The first line of the docstring of a command's file. The file is not run: its package may import torch."""
    package, *inner = point.module.split(".")
    spec = PathFinder.find_spec(package)
    if spec is None:
        return ""
    for folder in spec.submodule_search_locations or ():
        file = Path(folder, *inner).with_suffix(".py")
        if file.is_file():
            docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            return docstring.split("\n")[0]
    return ""
