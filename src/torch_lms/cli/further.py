"""Commands that other packages bring, by the entry points ``torch_lms.commands``."""

import ast
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import cast

import click

from torch_lms.errors import UsageError

ENTRY_POINTS = "torch_lms.commands"


def further_commands() -> list[metadata.EntryPoint]:
    """All that are installed, by name."""
    return sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name)


def loaded(point: metadata.EntryPoint) -> click.Command:
    """The command.

    Raises:
        UsageError: what it imports is not installed.
    """
    try:
        return cast(click.Command, point.load())
    except ImportError as error:
        raise missing(point.name, error) from error


def missing(name: str, error: ImportError) -> UsageError:
    """What to say when ``name`` needs a package that is not there."""
    return UsageError(
        f"{name} cannot be loaded ({error}): install its requirements, pip install 'torch-lms[workloads]'"
    )


def summary_of(point: metadata.EntryPoint) -> str:
    """The first sentence of the command's file, read without running it: its package may import torch."""
    package, *inner = point.module.split(".")
    spec = PathFinder.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(folder, *inner).with_suffix(".py")
        if file.is_file():
            told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            return told.split("\n")[0]
    return ""
