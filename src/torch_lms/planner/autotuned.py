"""A file of tunables that were chosen, by kind of step: the next run need not choose them anew."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError
from torch_lms.trace import Trace

_FORMAT = "torch-lms autotuned plan"
_VERSION = 1

_SPARE = 0.8
"""What was chosen for less of the limit than this is better chosen anew."""


def checked_file(given: object) -> Path:
    """The path ``given``, made absolute. The file need not be there yet.

    Raises:
        UsageError: it is no path, no such file, or nothing can be written there.
    """
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"tune: autotune_plan must be the path of a file; got {given!r}")
    path = Path(os.path.abspath(os.fsdecode(given)))
    if path.exists():
        _read(path)
    elif not os.access(path.parent, os.W_OK):
        raise UsageError(f"tune: autotune_plan must be a file in a directory that can be written; got {str(path)!r}")
    return path


def chosen_before(path: Path, trace: Trace, limit: int, given: Mapping[str, int]) -> dict[str, int] | None:
    """What was chosen for steps like ``trace`` under about this limit, beside ``given``; None if nothing was.

    Raises:
        UsageError: ``path`` is another file, or none that can be read.
    """
    found = _read(path).get(kind_of(trace, given)) if path.exists() else None
    if found is None or not _SPARE * limit <= found.pop("limit") <= limit:
        return None
    return found


def remember(path: Path, trace: Trace, limit: int, given: Mapping[str, int], chosen: Mapping[str, int]) -> None:
    """Add what was chosen. Ranks may share the file: it is replaced as a whole. If it cannot be written, the next run
    chooses anew.
    """
    known = _read(path) if path.exists() else {}
    known[kind_of(trace, given)] = {"limit": limit, **chosen}
    replace_file(path, json.dumps({"format": _FORMAT, "version": _VERSION, "steps": known}, indent=1) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, which others may be reading, if that is possible."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        beside.write_text(text)
        beside.replace(path)


def _read(path: Path) -> dict[str, dict[str, int]]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if (found["format"], found["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"{found['format']!r} of version {found['version']!r}")
        return {
            str(kind): {str(name): int(value) for name, value in values.items()}
            for kind, values in found["steps"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: expected a {_FORMAT!r} of version {_VERSION}; got {error}: give another path, or remove the file"
        ) from error


def kind_of(trace: Trace, given: Mapping[str, int]) -> str:
    """Equal in any process for steps of one kind, the same operations on pages of the same sizes, and values given."""
    sizes = [page.nbytes for page in trace.pages]
    told = [(op.name, [sizes[page] for page in op.pages], [sizes[page] for page in op.creates]) for op in trace.ops]
    return hashlib.sha256(json.dumps([told, sorted(given.items())]).encode()).hexdigest()[:16]
