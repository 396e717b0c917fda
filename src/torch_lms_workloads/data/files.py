"""Files and folders that must be there, and what is said when they are not."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch_lms.errors import UsageError

Item = TypeVar("Item")

PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
VOLUMES = (".nii.gz", ".nii")


def folder(path: Path, remedy: str) -> Path:
    """``path``, a folder.

    Raises:
        UsageError: it is not there, or no folder; says the remedy.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is {'no folder' if path.exists() else 'missing'}: {remedy}")
    return path


def file(path: Path, remedy: str) -> Path:
    """``path``, a file.

    Raises:
        UsageError: it is not there, or no file; says the remedy.
    """
    if not path.is_file():
        raise UsageError(f"{path} is {'no file' if path.exists() else 'missing'}: {remedy}")
    return path


def filled(items: Sequence[Item], where: Path, remedy: str) -> Sequence[Item]:
    """``items``, at least one.

    Raises:
        UsageError: none; names where they were looked for, and the remedy.
    """
    if not items:
        raise UsageError(f"{where} is an empty list: {remedy}")
    return items


def one_of(name: str, value: object, known: Sequence[object]) -> None:
    """
    Raises:
        UsageError: ``value`` is not among those known.
    """
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(map(str, known))}; got {value!r}")


def lines(path: Path) -> list[str]:
    """The lines of a list file, without those that are blank."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def read_json(path: Path) -> Any:
    """
    Raises:
        UsageError: no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path} is no JSON ({error}): fetch it again") from error


def names_in(parent: Path, endings: tuple[str, ...]) -> list[str]:
    """Names in a folder, in order; hidden files, which some archives are littered with, aside."""
    return sorted(name for name in os.listdir(parent) if name.lower().endswith(endings) and name[0] != ".")


def folders_in(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.name[0] != "." and path.is_dir())


def volumes_in(parent: Path) -> list[Path]:
    return [parent / name for name in names_in(parent, VOLUMES)]


def volume_stem(path: Path) -> str:
    """The name of a volume without ``.nii`` or ``.nii.gz``."""
    return path.name.removesuffix(".gz").removesuffix(".nii")
