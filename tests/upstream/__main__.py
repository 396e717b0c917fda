"""The command: tests are dealt out to worker processes, so that one that crashes or hangs costs one run."""

import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import TextIO

import click
import torch
from rich.console import Console

from tests.upstream import exceptions, report, settings, source
from tests.upstream.judging import NOT_RUN, ONLY_LMS, Judge, Verdict
from tests.upstream.process import CannotImport, Worker


@dataclass(frozen=True, slots=True)
class Job:
    """One test, at all settings."""

    file: str
    test: str


@dataclass(slots=True)
class Run:
    """What was asked for, and what is going on.

    Attributes:
        deadline: no test begins after it (``time.monotonic``).
        seconds: what one run of a test may take.
    """

    folder: Path
    settings: tuple[str, ...]
    workers: int
    seconds: float
    deadline: float

    def tests(self, files: list[str], console: Console) -> dict[str, list[str]]:
        """The tests of each file. A file that cannot be imported is an error."""
        found = {}
        worker = Worker(self.folder, self.seconds)
        for file in files:
            try:
                worker.load(file)
            except CannotImport as error:
                raise click.ClickException(f"{file}.py cannot be imported: {error}") from None
            found[file] = worker.tests
            if worker.absent:
                console.print(f"{file} imports what this PyTorch has not: {', '.join(worker.absent)}", markup=False)
        worker.close()
        return found

    def verdicts(self, jobs: list[Job]) -> Iterator[Verdict]:
        """As they come. The workers take the tests in order, so that each imports a file once."""
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        judged: queue.SimpleQueue[Verdict | Exception] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        workers = [Worker(self.folder, self.seconds) for _ in range(self.workers)]
        for worker in workers:
            threading.Thread(target=self._drain, args=(worker, waiting, judged), daemon=True).start()
        try:
            for _ in range(len(jobs) * len(self.settings)):
                verdict = judged.get()
                if isinstance(verdict, CannotImport):
                    raise click.ClickException(f"a file cannot be imported a second time: {verdict}")
                if isinstance(verdict, Exception):
                    raise verdict
                yield verdict
        finally:
            for worker in workers:
                worker.close()

    def _drain(
        self, worker: Worker, waiting: "queue.SimpleQueue[Job]", judged: "queue.SimpleQueue[Verdict | Exception]"
    ) -> None:
        try:
            while not waiting.empty():
                for verdict in self._judge(worker, waiting.get_nowait()):
                    judged.put(verdict)
        except queue.Empty:
            pass
        except Exception as error:
            judged.put(error)

    def _judge(self, worker: Worker, job: Job) -> Iterator[Verdict]:
        judge = Judge(worker, job.file, job.test)
        for setting in self.settings:
            if time.monotonic() > self.deadline:
                yield Verdict(job.file, job.test, setting, NOT_RUN, "the minutes were over")
            elif (known := exceptions.known(job.file, job.test, setting)) is not None and not known.is_run:
                yield Verdict(job.file, job.test, setting, NOT_RUN, known.reason)
            else:
                worker.load(job.file)
                yield judge.verdict(setting)


def sample(tests: dict[str, list[str]], strides: dict[str, int], match: str) -> tuple[list[Job], list[str]]:
    """Every n-th of those whose name contains ``match``, and a line for each file that tells so."""
    jobs, lines = [], []
    for file, names in tests.items():
        matching = [name for name in names if match in name]
        chosen = matching[:: strides[file]]
        jobs += [Job(file, name) for name in chosen]
        lines.append(f"{file}: {len(chosen)} of {len(names)} tests, one in {strides[file]}")
    return jobs, lines


def conclude(verdicts: list[Verdict], folder: Path, console: Console) -> bool:
    """Print what was found. Returns whether anything fails."""
    console.print(report.table(verdicts, f"Tests of {folder}, PyTorch {torch.__version__}, plain and under LMS"))
    for line in report.not_counted(verdicts):
        console.print(line, markup=False)
    for line in report.named(verdicts):
        console.print(line, markup=False)
    failing = {(verdict.file, verdict.test) for verdict in verdicts if verdict.state == ONLY_LMS}
    console.print(f"{len(failing)} tests fail only under LMS")
    for line in report.failures(verdicts):
        console.print(line, markup=False)
    return bool(failing)


def _settings(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(settings.SETTINGS) if value == "all" else tuple(value.split(",")) if value else ()
    for name in names:
        if name not in settings.SETTINGS:
            raise click.BadParameter(f"no setting {name!r}; there are {', '.join(settings.SETTINGS)}")
    return names


_SETTINGS_HELP = f"""\
Names with commas between, or `all`. By default {", ".join(settings.DEFAULT)}; there are also
{", ".join(name for name in settings.SETTINGS if name not in settings.DEFAULT)}.
"""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("files", nargs=-1)
@click.option("--quick", is_flag=True, help="A part of the tests, at two settings: ten minutes.")
@click.option("--settings", "chosen", default="", callback=_settings, help=_SETTINGS_HELP)
@click.option("--match", default="", help="Only tests whose name contains this, such as TestAutograd.test_hooks.")
@click.option("--every", type=click.IntRange(1), help="Only every n-th test of each file.")
@click.option("--minutes", type=click.FloatRange(0), help="Begin no test later. Without FILES: 60, or 10 (--quick).")
@click.option("--time-out", type=click.FloatRange(0, min_open=True), default=120.0, show_default=True, help="Seconds.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--json", "kept", type=click.File("w"), help="Every verdict, as JSON lines.")
def main(
    folder: Path,
    files: tuple[str, ...],
    quick: bool,
    chosen: tuple[str, ...],
    match: str,
    every: int | None,
    minutes: float | None,
    time_out: float,
    workers: int,
    kept: TextIO | None,
) -> None:
    """Run PyTorch's own tests plain and under LMS.

    FOLDER is a source tree of PyTorch; FILES are names such as test_autograd or nn/test_convolution.
    """
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    if minutes is None:
        minutes = inf if files else 10 if quick else 60
    deadline = time.monotonic() + minutes * 60
    folder = folder.resolve()
    warning, names = source.check_tree(folder), source.check_files(folder, files or tuple(source.FILES))
    if warning:
        console.print(f"warning: {warning}", markup=False)
    strides = {name: every or source.FILES.get(name, 1) for name in names}
    if not files and not every and quick:
        strides = {name: stride * source.QUICK for name, stride in strides.items()}
    run = Run(folder, chosen or (settings.QUICK if quick else settings.DEFAULT), workers, time_out, deadline)
    jobs, lines = sample(run.tests(list(strides), console), strides, match)
    console.print("\n".join(lines), markup=False)
    verdicts = []
    with console.status("") as status:
        for verdict in run.verdicts(jobs):
            report.name_known(verdict)
            verdicts.append(verdict)
            status.update(f"{len(verdicts)} of {len(jobs) * len(run.settings)}: {verdict.file} {verdict.test}")
            if verdict.state == ONLY_LMS:
                console.print("\n".join(report.failures([verdict])), markup=False)
            if kept is not None:
                print(json.dumps(asdict(verdict)), file=kept, flush=True)
    sys.exit(conclude(verdicts, folder, console))


if __name__ == "__main__":
    main()
