"""The demo's work: the scan, a warm-up, the four runs, the picture."""

import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import torch_lms
from torch_lms.demo.child import Ready, train
from torch_lms.demo.data import read_brain, write_volume
from torch_lms.demo.picture import Captions, write_picture
from torch_lms.demo.report import Demo, Outcome, Run
from torch_lms.units import format_bytes

BUDGET_SHARE = 0.5
"""What stock and lms may take, of the memory that the reference took for its training."""
_LEARNING_RATE = 0.003
_WARM_UP_MM = 5
_WARM_UP_STEPS = 24
_WARM_UP_RATE = 0.03

_FINE_MM, _LESS_FINE_MM = 2, 3
_STEPS_S = 75
"""What the steps of all runs may take, for the whole to take less than two minutes."""

_STEPS_OF_ALL = 3.5
"""Steps of the reference that one step of each run takes."""

_Stage: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose.

    ``voxel_mm`` None: as fine as there is time for. ``timelines`` is a folder: the last step of "lms" and of "moves" is
    written there.
    """

    steps: int
    voxel_mm: int | None
    device: Literal["cpu", "cuda"]
    spill_dir: Path | None
    picture: Path
    timelines: Path


@dataclass(frozen=True, slots=True)
class _Limit:
    """The limit of stock and lms: what it leaves to the training, and how it is enforced."""

    budget_bytes: int
    rlimit_data_bytes: int | None = None
    memory_fraction: float | None = None

    @property
    def arguments(self) -> list[str]:
        if self.rlimit_data_bytes is not None:
            return [f"--rlimit-data={self.rlimit_data_bytes}"]
        return [f"--memory-fraction={self.memory_fraction}"]


def perform(settings: Settings) -> Demo:
    """Run everything, with progress for whoever watches.

    Raises:
        click.ClickException: the warm-up or the reference did not complete, or the picture cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="torch-lms-demo-") as name, _progress() as progress:
        coarse = Path(name, "coarse.npz")
        fine = Path(name, "fine.npz")
        weights = Path(name, "weights.pt")
        prediction = Path(name, "prediction.npy")
        with _stage(progress, "reading the scan", None):
            brain = read_brain()
            write_volume(brain, coarse, _WARM_UP_MM)
        ready, warm_up = _warm_up(coarse, weights, settings, progress)
        voxel_mm = settings.voxel_mm or _voxel_mm_in_time(warm_up, settings.steps)
        settings = replace(settings, voxel_mm=voxel_mm)
        shape = write_volume(brain, fine, voxel_mm)
        training = [
            str(fine),
            f"--steps={settings.steps}",
            f"--learning-rate={_LEARNING_RATE}",
            f"--device={settings.device}",
            f"--threads={ready.threads}",
            f"--weights={weights}",
        ]
        with _stage(progress, "reference: no limit", settings.steps) as step:
            ready, reference = _completed("reference", *train(training, step))
        limit = _limit_from(ready, reference)
        training += limit.arguments
        with _stage(progress, f"stock: {format_bytes(limit.budget_bytes)}", settings.steps) as step:
            _, stock = train(training, step)
        training.append("--lms")
        if settings.spill_dir is not None:
            training.append(f"--spill-dir={settings.spill_dir}")
        with _stage(progress, f"lms: {format_bytes(limit.budget_bytes)}", settings.steps) as step:
            shown = _timeline(settings, "lms", "LMS")
            _, lms = train([*training, f"--prediction-to={prediction}", *shown], step)
        with _stage(progress, "moves: the same, nothing recomputed", settings.steps) as step:
            shown = _timeline(settings, "moves", "LMS that moves only")
            _, moves = train([*training, "--no-recompute", *shown], step)
        if lms.outcome is Outcome.COMPLETED:
            _draw(settings, fine, prediction, limit, lms)
    return Demo(
        reference,
        stock,
        lms,
        moves,
        idle_rss_bytes=ready.idle_rss_bytes,
        budget_bytes=limit.budget_bytes,
        rlimit_data_bytes=limit.rlimit_data_bytes,
        memory_fraction=limit.memory_fraction,
        surroundings=_surroundings(settings, shape, ready),
    )


def _timeline(settings: Settings, name: str, title: str) -> list[str]:
    return [f"--timeline-to={settings.timelines / name}.json", f"--title={title}"]


def _warm_up(coarse: Path, weights: Path, settings: Settings, progress: Progress) -> tuple[Ready, Run]:
    """Train shortly on a small scan, so that a few steps on the large one give something to look at."""
    arguments = [
        str(coarse),
        f"--steps={_WARM_UP_STEPS}",
        f"--learning-rate={_WARM_UP_RATE}",
        f"--device={settings.device}",
        f"--weights-to={weights}",
    ]
    with _stage(progress, "warm-up on a small scan", _WARM_UP_STEPS) as step:
        return _completed("the warm-up", *train(arguments, step))


def _voxel_mm_in_time(warm_up: Run, steps: int) -> int:
    """The size of voxels for which there is time, if steps take as long for each voxel as those of the warm-up."""
    assert warm_up.step_s is not None
    step_s = warm_up.step_s * (_WARM_UP_MM / _FINE_MM) ** 3
    return _FINE_MM if step_s * _STEPS_OF_ALL * steps < _STEPS_S else _LESS_FINE_MM


def _completed(name: str, ready: Ready | None, run: Run) -> tuple[Ready, Run]:
    """Hand on ``ready`` and ``run`` if the run completed: it has no limit but the machine's.

    Raises:
        click.ClickException: it did not.
    """
    if ready is not None and run.outcome is Outcome.COMPLETED:
        return ready, run
    if run.outcome is Outcome.OUT_OF_MEMORY:
        raise click.ClickException(
            f"{name} ran out of memory, without any limit of the demo: free some, or take larger voxels "
            f"(--size 3). {run.message}"
        )
    raise click.ClickException(f"{name} failed, without any limit; it wrote:\n{run.message}")


def _limit_from(ready: Ready, reference: Run) -> _Limit:
    """The limit of stock and lms: half of what the reference took, on whatever machine this is."""
    if ready.total_device_bytes is not None and reference.peak_device_bytes is not None:
        budget = int(BUDGET_SHARE * reference.peak_device_bytes)
        return _Limit(budget, memory_fraction=budget / ready.total_device_bytes)
    assert reference.peak_rss_bytes is not None
    budget = int(BUDGET_SHARE * (reference.peak_rss_bytes - ready.started_rss_bytes))
    return _Limit(budget, rlimit_data_bytes=ready.vm_data_bytes + budget)


def _draw(settings: Settings, volume: Path, prediction: Path, limit: _Limit, lms: Run) -> None:
    captions = Captions(
        "Grey and white matter, learned on the whole volume",
        f"3D U-Net on the MNI152 T1 template at {settings.voxel_mm} mm, trained in {format_bytes(limit.budget_bytes)}, "
        f"{BUDGET_SHARE:.0%} of what it takes without LMS",
        lms.dice or {},
    )
    try:
        write_picture(settings.picture, volume, prediction, captions)
    except OSError as error:
        raise click.ClickException(f"cannot write {str(settings.picture)!r}: {error.strerror or error}") from error


def _surroundings(settings: Settings, shape: tuple[int, ...], ready: Ready) -> dict[str, Any]:
    return {
        "device": settings.device,
        "device_name": ready.device_name,
        "threads": ready.threads,
        "cores": os.cpu_count(),
        "steps": settings.steps,
        "voxel_mm": settings.voxel_mm,
        "volume_shape": shape,
        "picture": settings.picture,
        "versions": {
            "torch_lms": torch_lms.__version__,
            "torch": ready.torch,
            "nilearn": metadata.version("nilearn"),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    }


def _progress() -> Progress:
    """Progress bars on standard error, which are gone when all is done; none where it is no terminal."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def _stage(progress: Progress, description: str, total: int | None) -> Iterator[_Stage]:
    """Show a bar, or a line where there are none; gives the function that moves it one step on."""
    if progress.disable:
        click.echo(f"{description} ...", err=True)
    task = progress.add_task(description, total=total)
    yield lambda: progress.advance(task)
    progress.update(task, total=total or 1, completed=total or 1)
