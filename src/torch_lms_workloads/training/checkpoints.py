"""Files that are whole or not there, and what is in them."""

import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from torch import Tensor

from torch_lms.errors import LmsError, UsageError
from torch_lms_workloads.data.about import About

NAME = "checkpoint.pt"
FORMAT = 1
KEYS = ("format", "recipe", "step", "losses", "about", "prepared", "data", "model")
"""What a checkpoint has at least."""


def write_whole(content: Mapping[str, Any], path: Path) -> None:
    """``torch.save``, but so that at any time there is the old file or the new one, even if the machine stops.

    Raises:
        LmsError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.part")
    try:
        torch.save(dict(content), draft)
        _to_disk(draft)
        draft.replace(path)
        _to_disk(path.parent)
    except (OSError, RuntimeError) as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) or "PytorchStreamWriter" in str(error):
            raise LmsError(f"{path} cannot be written ({error}): free some space, or name another folder") from error
        raise


def read(path: Path, remedy: str) -> Any:
    """What ``torch.save`` wrote. Its tensors stay in the file until they are used.

    Raises:
        UsageError: no such file, or no such content; says the remedy.
    """
    if not path.is_file():
        raise UsageError(f"{path} is {'no file' if path.exists() else 'missing'}: {remedy}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, ValueError, BadZipFile, pickle.UnpicklingError) as error:
        first = str(error).strip().split("\n")[0]
        raise UsageError(f"{path} cannot be read ({first}): {remedy}") from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint that ``torch-lms train`` wrote.

    Raises:
        UsageError: it is none, or one of another version.
    """
    content = read(path, f"give the {NAME} of a --checkpoint-dir of `torch-lms train`")
    if not isinstance(content, dict) or not set(KEYS) <= content.keys():
        raise UsageError(f"{path} is no checkpoint of `torch-lms train`: give the {NAME} of its --checkpoint-dir")
    if content["format"] != FORMAT:
        raise UsageError(f"{path} is of format {content['format']}; this version reads {FORMAT}: train anew")
    return content


def plain_about(about: About) -> dict[str, Any]:
    """For a file; ``About(**plain)`` is it again."""
    return asdict(about)


def owned(value: Any) -> Any:
    """A copy, whose tensors lie in memory of their own: what lies in a file cannot be paged."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: owned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [owned(item) for item in value]
    return value


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
