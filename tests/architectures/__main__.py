"""The command: networks are dealt out to processes, so that one that crashes or hangs costs one network."""

import logging
import os
import sys
import warnings
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version

import click
import torch
from rich.console import Console
from rich.table import Table

import torch_lms.transformers  # noqa: F401  # first: beside a build of PyTorch for the CPU, torchvision needs it
from tests.architectures.judge import SHARES, Verdict, judge
from tests.architectures.networks import names
from tests.architectures.ways import WAYS
from tests.workers import answers, serve

_SECONDS_PER_NETWORK = 900
_TOLERATED = 1.05
"""Of the limit."""

_FAILURES = ("differs", "raised", "crashed")


def work(way: str) -> None:
    """Judge the networks whose names come on standard input, used in that way."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    serve(lambda name: asdict(judge(name, way)))


def table(verdicts: dict[str, Verdict], way: str) -> Table:
    """A row for each library, and their sum."""
    over = [f"over {_TOLERATED:g} of the limit, at {share:g}" for share in SHARES]
    columns = ("networks", "left out", "unrepeatable", "used", "equal", *over, "failed")
    shown = Table("library", *columns, title=f"{way} at {' and '.join(map(str, SHARES))} of the demand")
    for column in shown.columns[1:]:
        column.justify = "right"
    for library in (*dict.fromkeys(name.partition(":")[0] for name in verdicts), "all"):
        its = [verdict for name, verdict in verdicts.items() if library in (name.partition(":")[0], "all")]
        states = Counter(verdict.state for verdict in its)
        used = len(its) - states["left out"] - states["unrepeatable"]
        exceeded = [sum(verdict.peaks.get(f"{share:g}", 0) > _TOLERATED for verdict in its) for share in SHARES]
        failed = sum(states[state] for state in _FAILURES)
        figures = (len(its), states["left out"], states["unrepeatable"], used, states["equal"], *exceeded, failed)
        label = library if library == "all" else f"{library} {version(library)}"
        shown.add_row(label, *map(str, figures))
    return shown


@click.command()
@click.option("--match", default="", help="Only networks whose name contains this, as timm:vit.")
@click.option(
    "--way", type=click.Choice(list(WAYS)), default="train", show_default=True, help="What is done with them."
)
@click.option("--every", default=1, help="Only every n-th network.")
@click.option("--workers", default=len(os.sched_getaffinity(0)), show_default=True)
@click.option("--worker", is_flag=True, hidden=True)
def main(match: str, way: str, every: int, workers: int, worker: bool) -> None:
    """Use every family of networks of timm, torchvision and transformers with and without LMS."""
    if worker:
        work(way)
        return
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    chosen = [name for name in names() if match in name][::every]
    command = [sys.executable, "-m", "tests.architectures", "--worker", "--way", way]
    verdicts = {}
    for name, answer in answers(command, chosen, workers, _SECONDS_PER_NETWORK):
        verdict = Verdict("crashed", answer) if isinstance(answer, str) else Verdict(**answer)
        verdicts[name] = verdict
        peaks = ", ".join(f"{peak:.3f} of the limit at {share}" for share, peak in verdict.peaks.items())
        console.print(f"{name}: {verdict.state} {verdict.detail[:300]} {peaks}", markup=False, soft_wrap=True)
    console.print(table({name: verdicts[name] for name in chosen}, way))
    sys.exit(any(verdict.state in _FAILURES for verdict in verdicts.values()))


if __name__ == "__main__":
    main()
