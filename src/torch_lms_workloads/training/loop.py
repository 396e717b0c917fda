"""The training loop, the same for all workloads."""

import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

from torch import nn

from torch_lms import Stats
from torch_lms.errors import LmsError
from torch_lms_workloads.data.batches import Loader, training_batches
from torch_lms_workloads.training.checkpoints import FORMAT, plain_about, read_checkpoint, write_whole
from torch_lms_workloads.training.engines.alone import Alone
from torch_lms_workloads.training.engines.base import Engine
from torch_lms_workloads.training.engines.ddp import Ddp
from torch_lms_workloads.training.logs import Log
from torch_lms_workloads.training.memory import peak_bytes
from torch_lms_workloads.training.paging import Session
from torch_lms_workloads.training.placing import Placing
from torch_lms_workloads.training.progress import Progress, Say
from torch_lms_workloads.training.random_state import (
    deterministic,
    random_state,
    seed_everything,
    set_random_state,
)
from torch_lms_workloads.training.ranks import joined
from torch_lms_workloads.training.schedules import SCHEDULES
from torch_lms_workloads.training.setup import Setup
from torch_lms_workloads.training.stepper import Stepper
from torch_lms_workloads.training.validation import validated
from torch_lms_workloads.training.weights import take_weights


@dataclass(frozen=True)
class Result:
    """
    Attributes:
        losses: of every step from the first on, the mean over ranks, as ``float.hex`` gives them.
        metric, metric_name: at the end.
        data_rate: pixels or voxels a second, of all ranks.
        step_s: seconds of a step, the median of those but the first.
        stats: of LMS, as of the last step; None without it.
        steps, resumed_from, ranks: how many; 0 if it was not resumed.
        peak_bytes: of the first rank's memory: on an accelerator of tensors, on the CPU of the process.
    """

    losses: tuple[str, ...]
    metric: float
    metric_name: str
    data_rate: float
    step_s: float
    stats: Stats | None
    steps: int
    resumed_from: int
    ranks: int
    peak_bytes: int


def train(setup: Setup, say: Say) -> Result:
    """From the first step, or the checkpoint's, to the last.

    Raises:
        LmsError: something of LMS, of the data or of the files went wrong, or the loss is no number any more.
    """
    request, ranks = setup.request, setup.ranks
    # made first: processes that read ahead are forked before there is anything that could be paged
    batches = iter(_loader(setup))
    with joined(ranks, setup.device), deterministic(request.is_deterministic):
        if request.folder is not None and ranks.is_first:
            request.folder.mkdir(parents=True, exist_ok=True)
        log = Log(request.folder if ranks.is_first else None, setup.first_step)
        try:
            with request.paging.session(setup.device) as lms:
                return _Training(setup, lms, log, Progress(say)).run(batches)
        finally:
            log.close()
            del batches


def _loader(setup: Setup) -> Loader:
    recipe, ranks = setup.recipe, setup.ranks
    return training_batches(
        setup.material.training,
        recipe.batch,
        start=setup.first_step * recipe.accumulate,
        rank=ranks.rank,
        ranks=ranks.count,
        workers=setup.request.workers,
        pin=setup.device.type != "cpu",
    )


def _engine(parallel: str) -> Engine:
    match parallel:
        case "ddp":
            return Ddp()
        case "fsdp":
            from torch_lms_workloads.training.engines.fsdp import Fsdp  # takes a second

            return Fsdp()
        case _:
            return Alone()


def _placing(setup: Setup) -> Placing:
    recipe = setup.recipe
    return Placing(
        setup.device, amp=recipe.amp, channels_last=recipe.channels_last, dimensions=setup.workload.dimensions
    )


class _Training:
    """One training under way."""

    def __init__(self, setup: Setup, lms: Session | None, log: Log, progress: Progress) -> None:
        self.setup, self.lms, self.log, self.progress = setup, lms, log, progress
        self.engine = _engine(setup.recipe.parallel)
        self.placing = _placing(setup)
        model = self.engine.wrapped(self._built(), setup.device)
        optimizer = setup.optimizer(model.parameters())
        self.stepper = Stepper(setup.workload, self.engine, self.placing, model, optimizer, setup.recipe.accumulate)
        self.losses: list[str] = []
        self.step_times_s: list[float] = []
        seed_everything(setup.recipe.seed, setup.ranks.rank)
        if setup.first_step and setup.checkpoint is not None:
            self._go_on(read_checkpoint(setup.checkpoint))

    def _built(self) -> nn.Module:
        setup = self.setup
        seed_everything(setup.recipe.seed)
        model = setup.workload.build(**setup.recipe.options)
        self.progress.begins(setup, model)
        if setup.request.init is not None and not setup.first_step:
            self.progress.note(take_weights(model, setup.request.init))
        return self.placing.model(model).train()

    def _go_on(self, earlier: dict[str, Any]) -> None:
        """Nobody else keeps ``earlier``: its tensors lie in a file, and could not be paged."""
        self.engine.load(self.stepper.model, self.stepper.optimizer, earlier)
        self.stepper.scaler.load_state_dict(earlier["scaler"])
        self.losses = list(earlier["losses"])
        set_random_state(earlier["random"][self.setup.ranks.rank])

    def run(self, batches: Any) -> Result:
        """All steps that are left."""
        setup, steps, metric, stats = self.setup, self.setup.recipe.steps, math.nan, None
        for number in range(setup.first_step + 1, steps + 1):
            stats = self._step(number, batches)
            if number % setup.val_every == 0 or number == steps:
                metric = self._validate(number)
                self._save(number)
        if setup.first_step >= steps:
            metric = self._validate(steps)
        step_s = statistics.median(self.step_times_s[1:] or self.step_times_s or [math.nan])
        return Result(
            losses=tuple(self.losses),
            metric=metric,
            metric_name=str(setup.workload.metric),
            data_rate=setup.items / step_s,
            step_s=step_s,
            stats=stats,
            steps=steps,
            resumed_from=setup.first_step,
            ranks=setup.ranks.count,
            peak_bytes=peak_bytes(setup.device),
        )

    def _step(self, number: int, batches: Any) -> Stats | None:
        setup, recipe = self.setup, self.setup.recipe
        lr = SCHEDULES[recipe.lr_policy](recipe.lr, number - 1, recipe.steps)
        began_s = time.perf_counter()
        loss = setup.ranks.mean(self.stepper(batches, lr))
        step_s = time.perf_counter() - began_s
        if not math.isfinite(loss):
            raise LmsError(f"the loss is {loss} at step {number}: lower --lr (it was {lr:g}), or look at the data")
        self.losses.append(loss.hex())
        self.step_times_s.append(step_s)
        stats, peak = self.lms.stats() if self.lms is not None else None, peak_bytes(setup.device)
        self.progress.step(setup, number, loss, step_s, stats, peak)
        moved = {} if stats is None else _moved(stats)
        rate = setup.items / step_s
        self.log.write(
            number, {"loss": loss, "lr": lr, "step_s": step_s, "data_rate": rate, "peak_bytes": peak, **moved}
        )
        return stats

    def _validate(self, number: int) -> float:
        setup = self.setup
        batch = setup.request.val_batch or setup.recipe.batch
        data = setup.material.validation
        model = self.stepper.model
        value = validated(setup.workload, self.engine, self.placing, model, data, batch, setup.ranks)
        self.progress.metric(setup, number, value)
        self.log.write(number, {str(setup.workload.metric): value})
        return value

    def _save(self, number: int) -> None:
        setup, path = self.setup, self.setup.checkpoint
        if path is None:
            return
        state = self.engine.state(self.stepper.model, self.stepper.optimizer)
        states = setup.ranks.gathered(random_state())
        if setup.ranks.is_first:
            content = {
                "format": FORMAT,
                "recipe": setup.recipe.plain(),
                "step": number,
                "losses": self.losses,
                "about": plain_about(setup.material.training.about),
                "prepared": dict(setup.material.prepared),
                "data": dict(setup.material.given),
                "scaler": self.stepper.scaler.state_dict(),
                "random": states,
                **state,
            }
            write_whole(content, path)
        setup.ranks.wait()


def _moved(stats: Stats) -> dict[str, float]:
    return {
        "evicted_bytes": stats.evicted_bytes,
        "fetched_bytes": stats.fetched_bytes,
        "recomputed_bytes": stats.recomputed_bytes,
        "stall_s": stats.stall_s,
    }
