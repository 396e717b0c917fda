"""What the campaign found, as a table and as a page."""

from pathlib import Path
from typing import Any

from rich.table import Table

from tests.campaign.parts import PARTS

_BEGIN, _END = "<!-- begin: campaign -->", "<!-- end: campaign -->"


def table(parts: dict[str, dict[str, Any]], title: str) -> Table:
    """One row for each part."""
    found = Table(title=title)
    for heading in ("part", "result", "seconds", "found"):
        found.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    for name in (name for name in PARTS if name in parts):
        outcome = parts[name]
        found.add_row(name, outcome["status"], f"{outcome['seconds']:.0f}", _in_short(outcome))
    return found


def _in_short(outcome: dict[str, Any]) -> str:
    more = f" (and {len(outcome['failures']) - 1} more)" if len(outcome["failures"]) > 1 else ""
    return "".join([*outcome["failures"][:1], more]) if outcome["failures"] else outcome["summary"]


def page(parts: dict[str, dict[str, Any]]) -> str:
    """Markdown: where it was run, all parts, and what each has found."""
    known = parts["machine"]["figures"]
    versions, device = known["versions"], known["accelerators"][0]
    lines = [
        f"**Run on {len(known['accelerators'])} x {device['model']}**, {parts['machine']['taken'][:10]}, commit "
        f"`{parts['machine']['commit']}`, PyTorch {versions['torch']}, CUDA {versions['cuda']}, cuDNN "
        f"{versions['cudnn']}, driver {versions['nvidia_driver']}.",
        "",
        *_rows(("part", "result", "seconds", "found")),
    ]
    there = [name for name in PARTS if name in parts]
    for name in there:
        outcome = parts[name]
        lines += _cells((PARTS[name].title, outcome["status"], f"{outcome['seconds']:.0f}", _in_short(outcome)))
    for name in there:
        if parts[name]["rows"]:
            lines += ["", f"### {PARTS[name].title[0].upper()}{PARTS[name].title[1:]}", "", *_rows(("what", "found"))]
            lines += [line for row in parts[name]["rows"] for line in _cells(row)]
    return "\n".join(lines)


def _rows(headings: tuple[str, ...]) -> list[str]:
    return [*_cells(headings), "|".join(["", *("---" for _ in headings), ""])]


def _cells(values: Any) -> list[str]:
    plain = (" ".join(str(value).split()).replace("|", "/") for value in values)
    return [f"| {' | '.join(plain)} |"]


def fill(target: Path, text: str) -> None:
    """Put ``text`` between the two marks of ``target``.

    Raises:
        ValueError: they are not there.
    """
    before = target.read_text()
    if before.count(_BEGIN) != 1 or before.count(_END) != 1:
        raise ValueError(f"{target} has no place for tables: {_BEGIN} and {_END} on lines of their own")
    head, rest = before.split(_BEGIN)
    target.write_text(f"{head}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}")
