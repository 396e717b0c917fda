"""What the demo found: as a table and a sentence for people, as JSON for programs."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rich import box
from rich.table import Table

from torch_lms.units import format_bytes, format_seconds


class Outcome(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Run:
    """One training, as far as it came.

    Attributes:
        losses_hex: of each step, ``float.hex``: equal text is equality to the bit.
        steps_s: seconds of each step.
        moved: in each step, what LMS did; nothing without it.
        dice: of each tissue, in the last step's prediction.
        peak_rss_bytes: the kernel's VmHWM.
        peak_device_bytes: on a GPU, the most bytes allocated there.
        message: why it did not complete; for a run that failed, all that it wrote to standard error.
        stats: the session's ``Stats``, if it was on.
    """

    outcome: Outcome
    losses_hex: tuple[str, ...] = ()
    steps_s: tuple[float, ...] = ()
    moved: tuple[dict[str, float], ...] = ()
    dice: dict[str, float] | None = None
    peak_rss_bytes: int | None = None
    peak_device_bytes: int | None = None
    message: str | None = None
    stats: dict[str, Any] | None = None

    @property
    def losses(self) -> list[float]:
        return [float.fromhex(loss) for loss in self.losses_hex]

    @property
    def step_s(self) -> float | None:
        """The median step."""
        return statistics.median(self.steps_s) if self.steps_s else None

    @property
    def planned(self) -> list[int]:
        """The steps that followed a plan to their end, from 0."""
        return [step for step, moved in enumerate(self.moved) if moved.get("planned_steps")]

    def planned_mean(self, what: str) -> float:
        """The mean of a figure over planned steps; 0 without any."""
        return statistics.fmean(self.moved[step][what] for step in self.planned) if self.planned else 0.0

    @property
    def planned_step_s(self) -> float | None:
        """The median planned step; None without any."""
        return statistics.median(self.steps_s[step] for step in self.planned) if self.planned else None


@dataclass(frozen=True, slots=True)
class Demo:
    """The four runs, and the limit that all but the first were under.

    ``moves`` is LMS that moves only: what plans recompute, and what that saves, this machine's disk decides.

    Attributes:
        idle_rss_bytes: VmHWM of a process that has only imported torch.
        budget_bytes: what the limit leaves to a run, beside what it holds before it starts.
        rlimit_data_bytes: the kernel's limit; None on a GPU.
        memory_fraction: the limit on a GPU, as a share of its memory; None without one.
        surroundings: versions, sizes and settings, for the JSON.
    """

    reference: Run
    stock: Run
    lms: Run
    moves: Run
    idle_rss_bytes: int
    budget_bytes: int
    rlimit_data_bytes: int | None
    memory_fraction: float | None = None
    surroundings: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> dict[str, Run]:
        return {"reference": self.reference, "stock": self.stock, "lms": self.lms, "moves": self.moves}

    @property
    def identical(self) -> bool:
        """Whether LMS changed no bit of any loss."""
        trained = (self.reference, self.lms, self.moves)
        have_completed = all(run.outcome is Outcome.COMPLETED for run in trained)
        return have_completed and len({run.losses_hex for run in trained}) == 1

    @property
    def peak_ratio(self) -> float | None:
        """Memory of the run with LMS as a share of the reference's, both above idle; None if it did not complete."""
        if self.lms.outcome is not Outcome.COMPLETED:
            return None
        ours = self._peak_above_idle(self.lms)
        theirs = self._peak_above_idle(self.reference)
        return ours / theirs if ours is not None and theirs else None

    def _peak_above_idle(self, run: Run) -> int | None:
        if self.rlimit_data_bytes is None:
            return run.peak_device_bytes
        return None if run.peak_rss_bytes is None else run.peak_rss_bytes - self.idle_rss_bytes


def shortcomings(demo: Demo) -> Iterator[str]:
    """Say what the demo was to show, and did not."""
    if demo.stock.outcome is not Outcome.OUT_OF_MEMORY:
        yield f"stock PyTorch was to run out of memory under the limit, and {_how(demo.stock)}"
    for name, run in {"LMS": demo.lms, "LMS that moves only": demo.moves}.items():
        if run.outcome is not Outcome.COMPLETED:
            yield f"the run with {name} was to complete under the limit, and {_how(run)}"
        elif run.losses_hex != demo.reference.losses_hex:
            yield f"the losses were to be identical, and {_first_difference(demo.reference, run)}"


def _first_difference(reference: Run, run: Run) -> str:
    pairs = zip(reference.losses_hex, run.losses_hex, strict=True)
    for step, (theirs, ours) in enumerate(pairs, 1):
        if theirs != ours:
            return f"differ from step {step} on: {theirs} without LMS, {ours} with it"
    raise AssertionError("unreachable: the losses are identical")


def _how(run: Run) -> str:
    if run.outcome is Outcome.OUT_OF_MEMORY:
        return f"ran out of memory after {len(run.steps_s)} steps: {run.message}"
    return "failed" if run.outcome is Outcome.FAILED else "completed"


def verdict(demo: Demo) -> list[str]:
    """Say in three sentences what was seen: that it fits, what steps cost, and what this machine's disk makes of it."""
    return [_fits(demo), _costs(demo), _recomputes(demo)]


def _fits(demo: Demo) -> str:
    text = (
        f"With {format_bytes(demo.budget_bytes)} for the training, stock PyTorch runs out of memory in step "
        f"{len(demo.stock.steps_s) + 1}; with one line more it completes, and its losses are identical to the bit"
    )
    if demo.peak_ratio is not None:
        text += f", in {demo.peak_ratio:.0%} of the reference's memory"
    return f"{text}."


def _costs(demo: Demo) -> str:
    ours, theirs_s = demo.lms, demo.reference.step_s
    assert theirs_s is not None
    step_s = ours.planned_step_s
    if step_s is None:
        return (
            f"No step followed a plan to its end: they took {ours.step_s or 0.0:.3g} s, "
            f"{_times(ours.step_s, theirs_s)} as long as the reference's; more --steps would show plans."
        )
    return (
        f"The first step took {ours.steps_s[0]:.3g} s, and from step {ours.planned[0] + 1} on steps follow a plan and "
        f"take {step_s:.3g} s, {_times(step_s, theirs_s)} as long as the reference's."
    )


def _recomputes(demo: Demo) -> str:
    ours, moves = demo.lms, demo.moves
    speeds = (ours.stats or {}).get("link_bytes_per_s", {})
    disk = " and ".join(f"{format_bytes(speed)}/s {way}" for way, speed in speeds.items()) or "an unknown speed"
    recomputed = ours.planned_mean("recomputed_bytes")
    without_s = moves.planned_step_s
    beside = "" if without_s is None else f" ({without_s:.3g} s a step)"
    if not ours.planned or not moves.planned:
        return f"Of recomputation nothing can be said, since too few steps followed a plan (the disk: {disk})."
    if not recomputed:
        return f"At this disk's {disk} plans recompute nothing, so moving alone{beside} is the same."
    return (
        f"At this disk's {disk} plans recompute {format_bytes(recomputed)} a step and evict "
        f"{format_bytes(ours.planned_mean('evicted_bytes'))}, where moving alone evicts "
        f"{format_bytes(moves.planned_mean('evicted_bytes'))}{beside}."
    )


def _times(step_s: float | None, than_s: float) -> str:
    return "-" if step_s is None else f"{step_s / than_s:.1f} times"


def table(demo: Demo) -> Table:
    """The figures, with a column for each run."""
    shown = Table(box=box.SIMPLE_HEAD, title=_title(demo), title_justify="left", title_style="")
    shown.add_column()
    for name in demo.runs:
        shown.add_column(name, justify="right")
    for label, cell in _rows(demo).items():
        shown.add_row(label, *(cell(run) for run in demo.runs.values()))
    return shown


def _title(demo: Demo) -> str:
    limit = "" if demo.rlimit_data_bytes is None else f" (RLIMIT_DATA {format_bytes(demo.rlimit_data_bytes)})"
    return f"stock and lms: {format_bytes(demo.budget_bytes)} for the training{limit}"


def _rows(demo: Demo) -> dict[str, Callable[[Run], str]]:
    """What the cell of a run says, by the label of the row."""
    rows: dict[str, Callable[[Run], str]] = {
        "outcome": lambda run: run.outcome.replace("_", " "),
        "peak RSS": lambda run: _bytes(run.peak_rss_bytes),
        "above idle": lambda run: _bytes(run.peak_rss_bytes and run.peak_rss_bytes - demo.idle_rss_bytes),
    }
    if demo.rlimit_data_bytes is None:
        rows["peak on device"] = lambda run: _bytes(run.peak_device_bytes)
    return rows | {
        "steps": lambda run: "\n".join(_step(run, step) for step in range(len(run.steps_s))) or "-",
        "evicted": lambda run: _bytes(run.stats and run.stats["evicted_bytes"]),
        "fetched": lambda run: _bytes(run.stats and run.stats["fetched_bytes"]),
        "recomputed": lambda run: _bytes(run.stats and run.stats.get("recomputed_bytes")),
        "last loss": lambda run: f"{run.losses[-1]:.8f}" if run.losses else "-",
        "Dice": lambda run: "\n".join(f"{tissue} {dice:.3f}" for tissue, dice in (run.dice or {}).items()) or "-",
    }


def _step(run: Run, step: int) -> str:
    mark = "planned " if step in run.planned else ""
    return f"{mark}{format_seconds(run.steps_s[step])}"


def _bytes(nbytes: int | dict[str, Any] | None) -> str:
    return format_bytes(nbytes) if isinstance(nbytes, int) else "-"


def as_json(demo: Demo) -> dict[str, Any]:
    """All that was found, with the units in the names."""
    return {
        "identical": demo.identical,
        "limit_bytes": demo.lms.stats and demo.lms.stats["limit_bytes"],
        "rlimit_data_bytes": demo.rlimit_data_bytes,
        "memory_fraction": demo.memory_fraction,
        "budget_bytes": demo.budget_bytes,
        "idle_rss_bytes": demo.idle_rss_bytes,
        "peak_ratio": demo.peak_ratio,
        "shortcomings": list(shortcomings(demo)),
        "seen": [] if list(shortcomings(demo)) else verdict(demo),
        "runs": {name: _run_as_json(run) for name, run in demo.runs.items()},
        **demo.surroundings,
    }


def _run_as_json(run: Run) -> dict[str, Any]:
    return {
        "outcome": run.outcome,
        "losses": run.losses,
        "losses_hex": run.losses_hex,
        "dice": run.dice,
        "peak_rss_bytes": run.peak_rss_bytes,
        "peak_device_bytes": run.peak_device_bytes,
        "step_s": run.step_s,
        "steps_s": run.steps_s,
        "planned_step_s": run.planned_step_s,
        "moved": run.moved,
        "message": run.message,
        "stats": run.stats,
    }
