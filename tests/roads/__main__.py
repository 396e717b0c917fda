"""The command."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from tests.roads.judge import Call, Case, all_cases
from tests.roads.report import failure, reasons, tables
from tests.roads.workers import verdicts


def chosen(match: str, every: int) -> list[Case]:
    """Cases whose name contains ``match``: of all protocols, and of every n-th of the other roads."""
    cases = [case for case in all_cases() if match in str(case)]
    roads = list(dict.fromkeys(case.road for case in cases if case.road.family != "protocol"))[::every]
    return [case for case in cases if case.road.family == "protocol" or case.road in set(roads)]


@click.command()
@click.option("--match", default="", help="Only cases whose name contains this.")
@click.option("--every", default=1, help="Only every n-th road, and all protocols.")
@click.option("--workers", default=len(os.sched_getaffinity(0)), show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Every call, as JSON lines.")
def main(match: str, every: int, workers: int, output: Path | None) -> None:
    """Compare every callable that takes a tensor, in every state of the tensor, with and without LMS."""
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    cases = chosen(match, every)
    results: list[tuple[Case, list[Call]]] = []
    for case, calls in verdicts(cases, workers):
        results.append((case, calls))
        if len(results) % 2000 == 0:
            console.print(f"{len(results)} of {len(cases)}: {case}", markup=False)
        for call in calls:
            if problem := failure(case, call):
                console.print(f"{case} called as ({call.pattern}): {problem}", markup=False, soft_wrap=True)
    for table in tables(results):
        console.print(table)
    for line in reasons(results):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if output is not None:
        output.write_text("".join(_lines(results)))
    sys.exit(any(failure(case, call) for case, calls in results for call in calls))


def _lines(results: list[tuple[Case, list[Call]]]) -> Iterator[str]:
    for case, calls in results:
        for call in calls:
            its = {
                "road": str(case.road),
                "state": case.state.name,
                **asdict(call),
                "failed": bool(failure(case, call)),
            }
            yield f"{json.dumps(its)}\n"


if __name__ == "__main__":
    main()
