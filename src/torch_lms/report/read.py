"""Reads the files of a report, whichever of ours they are."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError
from torch_lms.report.contents import Bench, Content, Contents, Demo, Picture, Plans, Result, Step, Training
from torch_lms.report.timeline_file import TimelineFile, read_timeline
from torch_lms.report.traced import laid_out
from torch_lms.trace import parse

_PNG = b"\x89PNG\r\n\x1a\n"
_BENCH = "torch-lms bench"
_BENCH_VERSION = 1
_OURS = (
    "a timeline (run or plan --timeline), a trace (run --trace), forecasts (plan --json), results (bench, run, train "
    "or demo --json), a log.jsonl of train, or a PNG file"
)
_IN_FOLDER = ("log.jsonl", "*.png")
"""What is taken of a folder: that of a training."""


def read_all(paths: Iterable[Path]) -> Contents:
    """Read ``paths``; of a folder, its log and pictures. What cannot be read is complained of, and left out."""
    contents = Contents()
    for path in _files(paths, contents):
        name = f"{path.parent.name}/{path.name}" if path.name == "log.jsonl" else path.name
        try:
            contents.found.append(_read(path, name, contents.complaints))
        except UsageError as error:
            contents.complaints.append(f"{path}: {error}")
            contents.has_unread = True
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            contents.complaints.append(f"{path}: not as torch-lms writes it ({what}): record it again")
            contents.has_unread = True
    return contents


def _files(paths: Iterable[Path], contents: Contents) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = [file for pattern in _IN_FOLDER for file in sorted(path.glob(pattern))]
        if not inside:
            contents.complaints.append(f"{path}: expected log.jsonl or PNG files in this folder; found none")
            contents.has_unread = True
        yield from inside


def _read(path: Path, name: str, complaints: list[str]) -> Content:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}") from error
    if raw.startswith(_PNG):
        return Picture(name, raw)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"expected {_OURS}; got something that is no text") from error
    if not text.strip():
        raise UsageError(f"expected {_OURS}; it is empty")
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict | list) and not (isinstance(whole, dict) and _is_first_line(whole)):
        return _of_object(whole, name)
    lines = _Lines.of(text)
    content = _of_lines(lines, name)
    complaints += [f"{path}: {complaint}" for complaint in lines.complaints]
    return content


# -- one object ------------------------------------------------------------------------------------------------------


def _of_object(written: Any, name: str) -> Content:
    if isinstance(written, list):
        if written and all(isinstance(each, dict) and {"machine", "demand_bytes"} <= each.keys() for each in written):
            return Plans(name, written)
        raise UsageError(f"expected {_OURS}; got a list of something else")
    if "traceEvents" in written:
        return Step(name, read_timeline(written))
    if "runs" in written and "identical" in written:
        return Demo(name, written)
    if {"stats", "losses", "peak_resident_bytes"} & written.keys():
        return Result(name, written)
    raise UsageError(f"expected {_OURS}; got an object with {', '.join(sorted(written)[:5]) or 'nothing in it'}")


# -- JSON lines ------------------------------------------------------------------------------------------------------


def _is_first_line(written: dict[str, Any]) -> bool:
    return "format" in written or "step" in written


@dataclass
class _Lines:
    """The lines of a file, each an object; those that are none are complained of, and left out."""

    text: list[str]
    objects: list[dict[str, Any]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> "_Lines":
        lines = cls([line for line in text.splitlines() if line.strip()])
        for number, line in enumerate(lines.text, start=1):
            try:
                written = json.loads(line)
            except ValueError:
                written = None
            if isinstance(written, dict):
                lines.objects.append(written)
                continue
            is_last = number == len(lines.text)
            why = "was cut short" if is_last else "is no JSON object"
            lines.complaints.append(f"line {number} {why}: it is left out")
        return lines


def _of_lines(lines: _Lines, name: str) -> Content:
    if not lines.objects:
        raise UsageError(f"expected {_OURS}; got text that is no JSON")
    first = lines.objects[0]
    form = first.get("format")
    if form == "torch-lms trace":
        trace = parse(lines.text, "the trace")
        return Step(name, TimelineFile(laid_out(trace), {"what": "trace", "title": name}), has_moves=False)
    if form == _BENCH:
        if first.get("version") != _BENCH_VERSION:
            raise UsageError(
                f"expected a {_BENCH!r} of version {_BENCH_VERSION}; got version {first.get('version')}: "
                f"use the torch-lms that wrote it, or run it again"
            )
        return Bench(name, first, _trials(lines))
    if form is not None:
        raise UsageError(f"expected {_OURS}; got a {form!r}")
    rows = [row for row in lines.objects if "step" in row]
    if not rows:
        raise UsageError(f"expected {_OURS}; got lines with {', '.join(sorted(first)[:5])}")
    return Training(name, rows)


def _trials(lines: _Lines) -> list[dict[str, Any]]:
    trials = []
    for trial in lines.objects[1:]:
        if {"way", "point", "outcome"} <= trial.keys() and isinstance(trial["point"], dict):
            trials.append(trial)
        else:
            lines.complaints.append("a trial without way, point or outcome is left out")
    return trials
