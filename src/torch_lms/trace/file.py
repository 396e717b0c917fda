"""Traces as files: JSON lines, the first of which says what it is."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError
from torch_lms.trace.record import Trace, TracedOp, TracedPage, Work

_FORMAT = "torch-lms trace"
_VERSION = 1
_SUCCESSOR = "becomes"
"""The key of ``TracedPage.successor`` in files of this version."""


def lines(trace: Trace) -> Iterator[str]:
    """The lines of a file of ``trace``, as JSON: one about the file, one for each page, one for each operation."""
    yield json.dumps({"format": _FORMAT, "version": _VERSION, "pages": len(trace.pages), "ops": len(trace.ops)})
    for page in trace.pages:
        yield json.dumps(_renamed(page._asdict(), "successor", _SUCCESSOR))
    for op in trace.ops:
        yield json.dumps(op._asdict())


def save(trace: Trace, path: Path) -> None:
    """Write ``trace`` to ``path`` (see ``lines``)."""
    path.write_text("".join(f"{line}\n" for line in lines(trace)))


def load(path: Path) -> Trace:
    """Read the trace that ``save`` wrote.

    Raises:
        UsageError: the file is no such trace, or not whole.
    """
    try:
        written = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: expected a trace as `torch-lms trace` writes it; got {error}") from error
    return parse(written, str(path))


def parse(written: Iterable[str], name: str) -> Trace:
    """The trace of ``lines``; ``name`` is where they are from. Errors as of ``load``."""
    try:
        lines: list[dict[str, Any]]
        head, *lines = map(json.loads, written)
        if head["format"] != _FORMAT or head["version"] != _VERSION:
            raise UsageError(f"{name}: expected a {_FORMAT!r} of version {_VERSION}; got {head}")
        if len(lines) != head["pages"] + head["ops"]:
            expected = f"{head['pages']} pages and {head['ops']} operations"
            raise UsageError(f"{name} is not whole: expected {expected}, got {len(lines)} lines: record it again")
        pages = [TracedPage(**_renamed(line, _SUCCESSOR, "successor")) for line in lines[: head["pages"]]]
        ops = [_op(line) for line in lines[head["pages"] :]]
        trace = Trace(tuple(pages), tuple(ops))
        trace.uses  # noqa: B018 - every page named must be there
        return trace
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{name}: expected a trace as `torch-lms trace` writes it; got {error}") from error


def _renamed(fields: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if name == old else name: value for name, value in fields.items()}


def _op(line: dict[str, Any]) -> TracedOp:
    fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in line.items()}
    op = TracedOp(**fields)
    return op if op.work is None else op._replace(work=Work(*op.work))
