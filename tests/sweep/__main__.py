"""The command: cases are dealt out to worker processes, so that one that crashes or hangs costs one case."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from tests.sweep.cases import Case, all_cases
from tests.sweep.exceptions import CHANGED_BY_ANY_MODE, UNREPEATABLE
from tests.sweep.variants import Verdict, judge
from tests.ways import IS_NATIVE
from tests.workers import answers, serve

_SECONDS_PER_CASE = 1800
_EXPECTED = {"mode": {} if IS_NATIVE else CHANGED_BY_ANY_MODE, "unrepeatable": UNREPEATABLE}


def failures(case: Case, verdict: Verdict) -> list[str]:
    """Why ``case`` fails, if it does."""
    found = [f"undeclared: {name}" for name in verdict.undeclared]
    if verdict.state != "crashed" and case.name in UNREPEATABLE:
        return found  # which of its runs differ is chance
    if verdict.state in ("crashed", "differs"):
        found.append(f"{verdict.state}: {verdict.detail}")
    elif verdict.state in _EXPECTED and case.name not in _EXPECTED[verdict.state]:
        found.append(f"{verdict.state}, and not listed: {verdict.detail}")
    return found


def verdicts(cases: list[Case], numbers: list[int], workers: int, in_pieces: bool) -> Iterator[tuple[Case, Verdict]]:
    """As they come."""
    command = [sys.executable, "-m", "tests.sweep", "--worker", *(["--in-pieces"] if in_pieces else [])]
    for number, answer in answers(command, map(str, numbers), workers, _SECONDS_PER_CASE):
        verdict = Verdict(state="crashed", detail=answer) if isinstance(answer, str) else Verdict(**answer)
        yield cases[int(number)], verdict


def table(results: list[tuple[Case, Verdict]], in_pieces: bool) -> Table:
    """A row for each kind, and their sum."""
    columns = (
        "cases",
        "attempts",
        "raised",
        "pages evicted",
        "in pieces",
        "equal",
        "as any mode",
        "unrepeatable",
        "excluded",
        "failed",
    )
    limit = "the largest result's size" if in_pieces else "0"
    shown = Table("kind", *columns, title=f"LMS with a limit of {limit} against stock PyTorch, bit by bit")
    for column in shown.columns[1:]:
        column.justify = "right"
    kinds = list(dict.fromkeys(case.kind for case, _ in results))
    for kind in [*kinds, "all"]:
        its = [(case, verdict) for case, verdict in results if kind in (case.kind, "all")]
        states = Counter(verdict.state for case, verdict in its if not failures(case, verdict))
        figures = (
            len(its),
            sum(verdict.attempts for _, verdict in its),
            sum(verdict.raised for _, verdict in its),
            sum(verdict.evictions for _, verdict in its),
            sum(verdict.in_pieces for _, verdict in its),
            *(states[state] for state in ("equal", "mode", "unrepeatable", "excluded")),
            sum(bool(failures(case, verdict)) for case, verdict in its),
        )
        shown.add_row(kind, *(f"{figure:,}" for figure in figures))
    return shown


@click.command()
@click.option("--match", default="", help="Only cases whose name contains this.")
@click.option("--every", default=1, help="Only every n-th case.")
@click.option("--workers", default=len(os.sched_getaffinity(0)), show_default=True)
@click.option("--in-pieces", is_flag=True, help="With a limit at which large operations run in pieces (default: 0).")
@click.option("--output", type=click.Path(path_type=Path), help="Every verdict, as JSON lines.")
@click.option("--worker", is_flag=True, hidden=True)
def main(match: str, every: int, workers: int, in_pieces: bool, output: Path | None, worker: bool) -> None:
    """Compare every operator, module and optimizer of PyTorch's own test lists with and without LMS."""
    if worker:
        torch.set_num_threads(1)
        cases = all_cases()
        serve(lambda number: asdict(judge(cases[int(number)], in_pieces)))
        return
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    cases = all_cases()
    chosen = [number for number, case in enumerate(cases) if match in str(case)][::every]
    results = []
    with console.status("") as status:
        for case, verdict in verdicts(cases, chosen, workers, in_pieces):
            results.append((case, verdict))
            status.update(f"{len(results)} of {len(chosen)}: {case}")
            for failure in failures(case, verdict):
                console.print(f"{case}: {failure[:600]}", markup=False)
    console.print(table(results, in_pieces))
    reasons = {
        f"{case.name}: {reason}"
        for case, verdict in results
        for state, known in (*_EXPECTED.items(), ("excluded", {case.name: verdict.detail}))
        if verdict.state == state and (reason := known.get(case.name))
    }
    for reason in sorted(reasons):
        console.print(f"  {reason}", markup=False)
    if output is not None:
        lines = (
            json.dumps({"case": str(case), **asdict(verdict), "failures": failures(case, verdict)})
            for case, verdict in results
        )
        output.write_text("".join(f"{line}\n" for line in lines))
    sys.exit(any(failures(case, verdict) for case, verdict in results))


if __name__ == "__main__":
    main()
