"""Writes what a command has found: JSON for programs, a console for people."""

import dataclasses
import json
import math
import numbers
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

JsonTarget: TypeAlias = Path | Literal["-"]
_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def json_target(_ctx: click.Context, _option: click.Parameter, value: str | None) -> JsonTarget | None:
    """A click callback that gives a file which can be written, or ``-``.

    It is checked before the work begins: hours later is too late for a mistyped directory.
    """
    if value is None:
        return None
    if value == "-":
        return "-"
    target = Path(os.path.abspath(value))  # a script that is run may change directory
    if target.is_dir():
        raise click.BadParameter(f"expected a file to write, got a directory: {value!r}")
    if not target.parent.is_dir():
        raise click.BadParameter(f"cannot write {value!r}: there is no directory {str(target.parent)!r}")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise click.BadParameter(f"cannot write {value!r}: permission denied")
    return target


def json_option(command: _Decorated) -> _Decorated:
    """Add ``--json FILE``; the command gets it as ``json_to: JsonTarget | None``."""
    explanation = "Write the result as JSON to FILE ('-': standard output)."
    return click.option("--json", "json_to", callback=json_target, metavar="FILE", help=explanation)(command)


def people_console(json_to: JsonTarget | None) -> "Console":
    """A console where people read: standard output, or standard error where standard output is for the JSON."""
    from rich.console import Console  # here, not above: commands that print nothing start without it

    return Console(stderr=json_to == "-", highlight=False, emoji=False)


def write_json(value: object, target: JsonTarget) -> None:
    """Write ``value`` (see :func:`to_plain`) whole or not at all.

    Raises:
        click.ClickException: the file cannot be written.
    """
    write_text(json.dumps(to_plain(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n", target)


def write_text(text: str, target: JsonTarget) -> None:
    """Write ``text``. Errors as of ``write_json``."""
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        _write_whole(Path(os.path.realpath(target)), text)
    except OSError as error:
        raise click.ClickException(f"cannot write {str(target)!r}: {error.strerror}") from error


def _write_whole(target: Path, text: str) -> None:
    if target.exists() and not target.is_file():
        # /dev/null, /dev/stderr or a pipe of the shell's is written into, never replaced by a file.
        target.write_text(text, encoding="utf-8")
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def to_plain(value: object) -> Any:
    """``value`` in what JSON knows: dataclasses become objects, paths strings, enums their values, sets sorted lists.

    JSON has no NaN and no infinity: they become null.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):  # numpy's too
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(to_plain, value))
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        return [to_plain(item) for item in value]
    raise TypeError(f"cannot write a {type(value).__name__} as JSON: {value!r}")
