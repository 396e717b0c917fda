"""What people see of a training."""

import time
from collections.abc import Callable

from torch import nn

from torch_lms import Stats
from torch_lms.units import format_bytes, format_seconds
from torch_lms_workloads.training.setup import Setup

Say = Callable[[str], None]

EVERY_S = 5.0
"""Between two lines."""


class Progress:
    """Lines for people: of the first steps and the last, and of others from time to time."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said_s = 0.0

    def begins(self, setup: Setup, model: nn.Module) -> None:
        recipe, about = setup.recipe, setup.material.training.about
        count = sum(parameter.numel() for parameter in model.parameters())
        in_all = recipe.ranks * recipe.batch * recipe.accumulate
        self._say(f"{recipe.workload}: {count / 1e6:.1f} M parameters, {about.classes} classes, on {setup.device}")
        self._say(
            f"{setup.request.data}: {len(setup.material.training)} samples to train with, "
            f"{len(setup.material.validation)} to validate with, size {recipe.size}"
        )
        self._say(
            f"batch {recipe.batch} on each rank, {in_all} to a step in all (ranks: {recipe.ranks}, accumulated: "
            f"{recipe.accumulate}); {recipe.optimizer}, lr {recipe.lr:g} on each rank and in all ({recipe.lr_policy})"
        )
        if setup.first_step:
            self._say(f"goes on from step {setup.first_step} of {recipe.steps}")

    def step(self, setup: Setup, number: int, loss: float, step_s: float, stats: Stats | None, peak: int) -> None:
        """Of step ``number``, from 1 on."""
        now = time.monotonic()
        if number not in (setup.first_step + 1, setup.recipe.steps) and now - self._said_s < EVERY_S:
            return
        self._said_s = now
        unit = {2: "pixels", 3: "voxels"}[setup.workload.dimensions]
        moved = (
            ""
            if stats is None
            else f", out {format_bytes(stats.evicted_bytes)}, in {format_bytes(stats.fetched_bytes)}"
        )
        self._say(
            f"step {number}/{setup.recipe.steps}: loss {loss:.4f}, {format_seconds(step_s)}, "
            f"{setup.items / step_s / 1e6:.3g} million {unit}/s, memory {format_bytes(peak)}{moved}"
        )

    def metric(self, setup: Setup, number: int, value: float) -> None:
        self._say(f"step {number}/{setup.recipe.steps}: {setup.workload.metric} {value:.4f}")

    def note(self, text: str) -> None:
        self._say(text)
