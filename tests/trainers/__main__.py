"""The command: each training runs three times, in processes of its own."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tests.trainers.rows import ROWS, Row
from torch_lms.output import write_json

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- begin: trainers -->", "<!-- end: trainers -->"

AMPLE = 1 << 36
"""Bytes: no row needs as much."""

SECONDS_PER_RUN = 1200

HEAD = ("training", "versions", "demand", "limit", "peak", "bits", "planned steps", "unpaged", "verdict")


class Failed(Exception):
    """A run did not end well."""


@dataclass(frozen=True)
class Outcome:
    """Of a training with LMS, against the same without it.

    Attributes:
        row: which.
        why_not: why there is none; "" if there is.
        is_left_out: whether something that it needs is not installed.
        demand_bytes, limit_bytes, peak_bytes: of the rank that needs most.
        differing: what does not equal the training without LMS, as "weights of rank 1".
        planned_steps, steps: of the rank that has fewest planned.
        unpaged_bytes: what had to stay on the device in the end.
    """

    row: str
    why_not: str = ""
    is_left_out: bool = False
    demand_bytes: int = 0
    limit_bytes: int = 0
    peak_bytes: int = 0
    differing: tuple[str, ...] = ()
    planned_steps: int = 0
    steps: int = 0
    unpaged_bytes: int = 0

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.is_left_out:
            return "left out"
        if self.why_not:
            return "FAILED"
        if self.differing:
            return "DIFFERS"
        if self.peak_bytes > self.limit_bytes:
            return "OVER THE LIMIT"
        return "ok" if self.planned_steps else "NOT PLANNED"

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        title = ROWS[self.row].title
        if self.why_not:
            return title, *[""] * (len(HEAD) - 2), f"{self.verdict}: {self.why_not}"
        sizes = (f"{nbytes / 1e6:.2f} MB" for nbytes in (self.demand_bytes, self.limit_bytes, self.peak_bytes))
        bits = f"differ: {', '.join(self.differing)}" if self.differing else "equal"
        steps = f"{self.planned_steps} of {self.steps}"
        return title, _versions(ROWS[self.row]), *sizes, bits, steps, f"{self.unpaged_bytes / 1e6:.2f} MB", self.verdict


@click.command()
@click.argument("names", nargs=-1, metavar="[ROW]...")
@click.option("--ci", "is_ci", is_flag=True, help="Those that CI runs.")
@click.option("--list", "lists", is_flag=True, help="Tell the names of all, and run none.")
@click.option("--source", "sources", multiple=True, metavar="LIBRARY=FOLDER", help="A checkout, for the row timm.")
@click.option("--json", "json_to", type=click.Path(path_type=Path), help="Write all figures into this file.")
@click.option("--write", is_flag=True, help="Write the table into docs/compatibility.md.")
def main(
    names: tuple[str, ...], is_ci: bool, lists: bool, sources: tuple[str, ...], json_to: Path | None, write: bool
) -> None:
    """Train by real trainers at a third of what they need, and compare with the same without LMS.

    Each training runs three times: without LMS; with room for all, which tells its demand; and with a third of that.
    Bits are those of losses, weights and all else that it returns. What stays unpaged is told as it is in the end,
    after checkpoints were saved. Plans are made between steps, since these trainings last seconds.
    """
    if lists:
        for name, row in ROWS.items():
            print(f"{name:20} {row.title}")
        return
    unknown = set(names) - set(ROWS)
    if unknown:
        raise click.UsageError(f"there is no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    chosen = names or [name for name, row in ROWS.items() if row.in_ci or not is_ci]
    folders = dict(source.split("=", 1) for source in sources if "=" in source)
    outcomes = []
    for name in chosen:
        outcomes.append(outcome := judged(name, folders))
        print(" | ".join(outcome.cells), flush=True)
    show(outcomes)
    if json_to is not None:
        rows = [{**vars(outcome), "verdict": outcome.verdict, "cells": outcome.cells} for outcome in outcomes]
        write_json({"torch": version("torch"), "rows": rows}, str(json_to))
    if write:
        DOCUMENT.write_text(_with_table(DOCUMENT.read_text(), outcomes))
    sys.exit(any(outcome.verdict not in ("ok", "left out") for outcome in outcomes))


def judged(name: str, sources: dict[str, str]) -> Outcome:
    """Train it three times."""
    row = ROWS[name]
    absent = [package for package in row.packages if importlib.util.find_spec(package) is None]
    if absent:
        return Outcome(name, f"pip install {' '.join(absent)}", is_left_out=True)
    if row.needs_source and name not in sources:
        return Outcome(name, f"needs a checkout: --source {name}=FOLDER", is_left_out=True)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            source = sources.get(name) if row.needs_source else None
            stock = trained(name, Path(scratch), None, source)
            demand = max(rank["stats"]["demand_bytes"] for rank in trained(name, Path(scratch), AMPLE, source))
            ranks = trained(name, Path(scratch), demand // 3, source)
        except Failed as error:
            return Outcome(name, str(error))
    figures = [rank["stats"] for rank in ranks]
    least_planned = min(figures, key=lambda stats: stats["planned_steps"])
    return Outcome(
        name,
        demand_bytes=demand,
        limit_bytes=demand // 3,
        peak_bytes=max(stats["peak_resident_bytes"] for stats in figures),
        differing=tuple(_differing(stock, ranks)),
        planned_steps=least_planned["planned_steps"],
        steps=least_planned["steps"],
        unpaged_bytes=max(sum(stats["unpaged_bytes"].values()) for stats in figures),
    )


def _differing(stock: list[dict[str, Any]], ranks: list[dict[str, Any]]) -> list[str]:
    found = []
    for number, (expected, rank) in enumerate(zip(stock, ranks, strict=True)):
        for what, digest in expected["digests"].items():
            if rank["digests"].get(what) != digest:
                found.append(what if len(stock) == 1 else f"{what} of rank {number}")
    return found


def trained(name: str, scratch: Path, limit: int | None, source: str | None) -> list[dict[str, Any]]:
    """What each rank of a training found; ``limit``: bytes, None without LMS.

    Raises:
        Failed: a rank did not end well, or trained without LMS.
    """
    row = ROWS[name]
    folder = scratch / name
    shutil.rmtree(folder, ignore_errors=True)
    worker = ["tests.trainers.worker", name, str(folder)]
    if source is not None:
        worker += ["--source", str(Path(source).absolute())]
    if limit is not None and row.has_callback:
        worker += ["--limit", str(limit), "--min-size", str(row.min_size)]
    launched = [*row.launcher, *worker] if row.launcher else ["-m", *worker]
    if limit is not None and not row.has_callback:
        command = ["-m", "torch_lms", "run", "--limit", str(limit), "--min-size", str(row.min_size), *launched]
    elif row.launcher:
        command = [str(_program(row.launcher[0])), *launched[1:]]
    else:
        command = launched
    if command[0] == "-m":
        command = [sys.executable, *command]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_DYNAMIC": "FALSE",
        "TORCH_LMS_PLANNING": "at-once",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_PER_RUN
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {SECONDS_PER_RUN} s: {' '.join(command)}") from None
    files = sorted(folder.glob("rank-*.json"))
    if done.returncode or len(files) != row.ranks:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        raise Failed(f"exit code {done.returncode}, {len(files)} of {row.ranks} ranks, said {said[-1]!r}")
    ranks = [json.loads(file.read_text()) for file in files]
    if any((rank["stats"] is None) != (limit is None) for rank in ranks):
        raise Failed("LMS is on in a rank that should be without it, or off in one that should have it")
    return ranks


def _program(name: str) -> Path:
    """Beside the interpreter."""
    return Path(sys.executable).parent / name


def _versions(row: Row) -> str:
    return ", ".join(f"{package} {version(package)}" for package in row.packages if package != "torch")


def show(outcomes: list[Outcome]) -> None:
    """Print the table."""
    table = Table(*HEAD, title=f"PyTorch {version('torch')}; limit: a third of the demand")
    for outcome in outcomes:
        table.add_row(*outcome.cells)
    console = Console()
    console.width = max(console.width, 200)
    console.print(table)


def _with_table(document: str, outcomes: list[Outcome]) -> str:
    """``document`` with the table between its markers."""
    lines = [f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *(o.cells for o in outcomes))]
    before, rest = document.split(BEGIN)
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    main()
