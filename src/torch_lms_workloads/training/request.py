"""What was asked for on the command line. None is whatever the workload takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch_lms_workloads.training.paging import Paging

Amp = Literal["no", "bf16", "fp16"]
LrPolicy = Literal["poly", "constant"]
Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Request:
    """
    Attributes:
        data: the data set's folder, or "synthetic".
        options: of the network and of the data set, by name.
        size: of all sides.
        batch: samples of one rank at once.
        accumulate: such batches to one optimizer step.
        steps, epochs: how long; at most one of them. Neither: one epoch.
        optimizer: the name of one in ``torch.optim``.
        lr, lr_policy: the learning rate, and how it changes.
        amp: what autocast computes in.
        val_batch: samples of one rank at once in validation.
        val_every: steps from one validation to the next, each with a checkpoint; None: an epoch.
        init: a file of weights to begin with.
        channels_last: whether the channels lie beside each other in memory.
        seed: of everything that is random.
        is_deterministic: whether only such algorithms may be taken as give the same each time.
        folder: where checkpoints and logs go; None: nowhere.
        resume: go on from the checkpoint there.
        parallel: how ranks train together, if there are several.
        workers: processes that read ahead.
        paging: LMS.
    """

    data: str
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int | None = None
    batch: int | None = None
    accumulate: int = 1
    steps: int | None = None
    epochs: int | None = None
    optimizer: str | None = None
    lr: float | None = None
    lr_policy: LrPolicy = "poly"
    amp: Amp = "no"
    val_batch: int | None = None
    val_every: int | None = None
    init: Path | None = None
    channels_last: bool = False
    seed: int = 0
    is_deterministic: bool = False
    folder: Path | None = None
    resume: bool = False
    parallel: Parallel = "ddp"
    workers: int = 0
    paging: Paging = field(default_factory=Paging)
