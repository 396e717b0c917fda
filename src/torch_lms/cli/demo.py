"""``torch-lms demo``: stock PyTorch runs out of memory; with one line more it trains, equal to the bit."""

import importlib.util
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from torch_lms.cli.failure import FAILED
from torch_lms.cli.file_named import file_named
from torch_lms.cli.report import made_by
from torch_lms.output import JsonTarget, json_option, people_console, write_json, write_text

if TYPE_CHECKING:
    from torch_lms.demo.report import Demo


@click.command()
@click.option("--steps", type=click.IntRange(1, 1000), default=6, show_default=True, help="Training steps.")
@click.option(
    "--size",
    type=click.IntRange(1, 3),
    metavar="MM",
    help="Side of a voxel in mm, 1 to 3 (default: 2, or 3 where that takes more than two minutes). At 1 mm everything "
    "takes eight times as much as at 2.",
)
@click.option("--full", is_flag=True, help="The finest volume, 197 x 233 x 189 voxels: the same as --size 1.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to train.")
@click.option(
    "--spill-dir",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Directory on the disk that tensors are moved to.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default="torch-lms-demo.png",
    show_default=True,
    metavar="FILE",
    callback=file_named("a .png file", ".png"),
    help="Where to draw a slice of the brain: scan, truth, prediction.",
)
@click.option(
    "--report",
    "report_to",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default="torch-lms-demo.html",
    show_default=True,
    metavar="FILE",
    callback=file_named("an .html file", ".html", ".htm"),
    help="Where to write what was seen, for a browser.",
)
@json_option
def command(
    steps: int,
    size: int | None,
    full: bool,
    device: Literal["cpu", "cuda"],
    spill_dir: Path | None,
    picture: Path,
    report_to: Path,
    json_to: JsonTarget | None,
) -> int:
    """Watch stock PyTorch run out of memory, and LMS train on, equal to the bit.

    A 3D U-Net learns grey and white matter on a whole brain scan, the same way in four processes: without a limit
    (reference), under a limit of half the memory that took (stock), under that limit with one line more (lms), and
    with nothing recomputed (moves). The operating system enforces it (RLIMIT_DATA); on a GPU, PyTorch's allocator.
    """
    if full and size not in (None, 1):
        raise click.UsageError("--full is --size 1: give one of the two")
    _check_machine(device)
    from torch_lms.demo.runs import Settings, perform

    if spill_dir is not None:
        spill_dir = spill_dir.absolute()
    if full:
        size = 1
    with tempfile.TemporaryDirectory(prefix="torch-lms-demo-report-") as folder:
        demo = perform(Settings(steps, size, device, spill_dir, picture, Path(folder)))
        _write_report(demo, Path(folder), picture, report_to)
    return _show(demo, picture, report_to, json_to)


def _write_report(demo: "Demo", folder: Path, picture: Path, report_to: Path) -> None:
    from torch_lms.demo.page import demo_page

    write_text(demo_page(demo, folder, picture, made_by()), report_to)


def _check_machine(device: str) -> None:
    missing = [name for name in ("nilearn", "PIL") if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f'the demo also needs {" and ".join(missing)}: pip install "torch-lms[demo]"')
    if platform.system() != "Linux":
        raise click.ClickException(f"the demo needs the memory limits of Linux; this is {platform.system()}")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise click.ClickException("PyTorch sees no CUDA device here: omit --device cuda")


def _show(demo: "Demo", picture: Path, report_to: Path, json_to: JsonTarget | None) -> int:
    """Print the table, and the verdict or what went wrong; gives the exit code."""
    from torch_lms.demo.report import Outcome, as_json, shortcomings, table, verdict

    console = people_console(json_to)
    console.print(table(demo))
    failures = list(shortcomings(demo))
    if not failures:
        console.print(*verdict(demo), f"The picture: {picture}", f"The report: {report_to}", sep="\n", soft_wrap=True)
    if json_to is not None:
        write_json(as_json(demo), json_to)
    for name, run in demo.runs.items():
        if run.outcome is Outcome.FAILED:
            click.echo(f"{name} wrote:\n{run.message}", err=True)
    for failure in failures:
        click.echo(f"torch-lms: error: {failure}", err=True)
    return FAILED if failures else 0
