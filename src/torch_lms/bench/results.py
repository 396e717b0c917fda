"""The file of results: a header, then a line a trial, written as soon as it is known, and read again to go on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_lms.bench.trial import Point, Trial
from torch_lms.errors import UsageError
from torch_lms.output import to_plain

FORMAT = "torch-lms bench"
VERSION = 1

_MUST_AGREE = ("target", "settings", "torch", "torch_lms", "machine")
"""Parts of the header that have to be the same for a file to be gone on with."""


class Results:
    """Trials that are known, by way and point.

    Args:
        header: of the file.
        path: of the file; None keeps nothing.

    Attributes:
        trials: in the order in which they were made.
        dropped: whether a truncated last line was dropped when the file was read.
        resumed: how many trials were in the file.

    Raises:
        UsageError: the file is of another kind, version or command.
    """

    def __init__(self, header: Mapping[str, Any], path: Path | None) -> None:
        self.trials: list[Trial] = []
        self.dropped = False
        self.resumed = 0
        self._path = path
        self._known: dict[str, Trial] = {}
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            self._resume(header, path)
        else:
            path.write_text(_line(header), encoding="utf-8")

    def find(self, way: str, point: Point) -> Trial | None:
        """The trial of ``way`` at ``point``, if it was made."""
        return self._known.get(_key(way, point))

    def add(self, trial: Trial) -> None:
        """Keep ``trial``.

        Raises:
            UsageError: the file cannot be written any more.
        """
        self._take(trial)
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(trial))
        except OSError as error:
            raise UsageError(f"cannot write {str(self._path)!r}: {error.strerror}; what it has is kept") from error

    def _take(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._known[_key(trial.way, trial.point)] = trial

    def _resume(self, header: Mapping[str, Any], path: Path) -> None:
        before, trials, whole = read(path)
        for part in _MUST_AGREE:
            expected = to_plain(header.get(part))
            if before.get(part) != expected:
                raise UsageError(
                    f"{path} holds results of another command or machine: expected {part} {_short(expected)}; it has "
                    f"{_short(before.get(part))}. Give another file to -o, or delete this one"
                )
        size = path.stat().st_size
        if whole < size:
            self.dropped = True
            with path.open("r+b") as file:
                file.truncate(whole)
        for trial in trials:
            self._take(trial)
        self.resumed = len(trials)


def read(path: Path) -> tuple[dict[str, Any], list[Trial], int]:
    """The header of a file, its trials, and how many bytes of it are whole lines: a kill may cut the last one.

    Raises:
        UsageError: it is no file of results, one of another version, or damaged before its last line.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    whole = sum(len(line) for line in lines)
    if lines and not _is_whole(lines[-1]):
        whole -= len(lines.pop())
    found = [_parsed(path, number, line) for number, line in enumerate(lines, start=1)]
    if not found or found[0].get("format") != FORMAT:
        raise UsageError(f"{path} is no file of results: expected a first line with the format {FORMAT!r}")
    header = found[0]
    if header.get("version") != VERSION:
        raise UsageError(
            f"{path} has version {header.get('version')!r} of the format: expected {VERSION}. Give another file, or "
            "read it with the torch-lms that wrote it"
        )
    return header, [_trial(path, number, line) for number, line in enumerate(found[1:], start=2)], whole


def _is_whole(line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return False
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{path}, line {number}, is no JSON ({error}): repair or delete that line") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}, line {number}: expected an object; got {type(found).__name__}")
    return found


def _trial(path: Path, number: int, found: Mapping[str, Any]) -> Trial:
    try:
        return Trial.read(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}, line {number}: expected a trial with way, point and outcome; got {_short(found)}"
        ) from error


def _line(value: object) -> str:
    return json.dumps(to_plain(value), allow_nan=False, ensure_ascii=False) + "\n"


def _key(way: str, point: Point) -> str:
    return json.dumps([way, sorted(point.items())])


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."
