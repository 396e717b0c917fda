"""A training before it begins: everything that can be wrong is found here, before any memory is taken."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_lms.errors import UsageError
from torch_lms_workloads.data.batches import steps_per_epoch
from torch_lms_workloads.training.checkpoints import NAME, read_checkpoint
from torch_lms_workloads.training.choices import divided
from torch_lms_workloads.training.material import Material, opened
from torch_lms_workloads.training.optimizers import chosen_optimizer
from torch_lms_workloads.training.ranks import Ranks
from torch_lms_workloads.training.recipe import Recipe
from torch_lms_workloads.training.request import Request
from torch_lms_workloads.workload import OptimizerChoice, Workload


@dataclass(frozen=True)
class Setup:
    """
    Attributes:
        workload, request, ranks: what is trained, as was asked for, by whom.
        recipe: nothing of it is left open.
        optimizer: the same.
        material: samples.
        device: of this rank.
        val_every: steps from one validation to the next.
        first_step: steps that were done before, by the checkpoint that is gone on from; 0 without one.
    """

    workload: Workload
    request: Request
    ranks: Ranks
    recipe: Recipe
    optimizer: OptimizerChoice
    material: Material
    device: torch.device
    val_every: int
    first_step: int

    @property
    def checkpoint(self) -> Path | None:
        """Where checkpoints are written."""
        return None if self.request.folder is None else self.request.folder / NAME

    @property
    def items(self) -> int:
        """Pixels or voxels of a step of all ranks."""
        recipe = self.recipe
        return int(recipe.size**self.workload.dimensions) * recipe.batch * recipe.accumulate * recipe.ranks


def set_up(workload: Workload, request: Request, ranks: Ranks) -> Setup:
    """
    Raises:
        UsageError: it cannot be done so.
    """
    device = ranks.device()
    _check(request, ranks, device)
    size = workload.size if request.size is None else request.size
    batch = workload.batch if request.batch is None else request.batch
    choices = divided(workload, request.data, request.options)
    material = opened(workload, request.data, choices, size=size, seed=request.seed)
    workload.bounds(material.options).check(workload.name, size, batch)
    epoch = steps_per_epoch(len(material.training), batch * request.accumulate, ranks.count)
    optimizer = chosen_optimizer(workload, request.optimizer, request.lr)
    recipe = Recipe(
        workload=workload.name,
        options=material.options,
        size=size,
        batch=batch,
        accumulate=request.accumulate,
        ranks=ranks.count,
        steps=request.steps or epoch * (request.epochs or 1),
        optimizer=optimizer.kind.__name__,
        lr=float(optimizer.settings["lr"]),
        lr_policy=request.lr_policy,
        amp=request.amp,
        channels_last=request.channels_last,
        seed=request.seed,
        parallel=request.parallel if ranks.count > 1 else "no",
    )
    val_every = request.val_every or epoch
    return Setup(workload, request, ranks, recipe, optimizer, material, device, val_every, _first_step(request, recipe))


def _check(request: Request, ranks: Ranks, device: torch.device) -> None:
    if request.amp == "fp16" and device.type == "cpu":
        raise UsageError("--amp fp16 needs a GPU: take bf16")
    if request.amp == "fp16" and request.parallel == "fsdp" and ranks.count > 1:
        raise UsageError("--amp fp16 does not go with --parallel fsdp: take bf16, or --parallel ddp")
    if request.is_deterministic and not request.paging.exact:
        raise UsageError(
            "--deterministic promises the same bits each time, and with --inexact operations may be rounded in another "
            "way: give up one of them"
        )
    if request.resume and request.folder is None:
        raise UsageError("--resume needs the --checkpoint-dir to go on from")
    if request.folder is not None:
        _check_folder(request.folder)


def _check_folder(folder: Path) -> None:
    """Found now: after the first epoch is too late."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--checkpoint-dir {folder} is no folder: name another")
    nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not os.access(nearest, os.W_OK):
        raise UsageError(f"--checkpoint-dir {folder} cannot be written to: name another")


def _first_step(request: Request, recipe: Recipe) -> int:
    path = None if request.folder is None else request.folder / NAME
    if path is None or not path.exists():
        return 0
    earlier = read_checkpoint(path)
    if not request.resume:
        raise UsageError(
            f"{path} is there already, of step {earlier['step']}: go on from it with --resume, or name another folder"
        )
    recipe.check_continues(earlier["recipe"], path)
    return int(earlier["step"])
