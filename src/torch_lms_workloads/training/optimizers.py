"""Optimizers by name."""

import inspect

import torch

from torch_lms.errors import UsageError
from torch_lms_workloads.workload import OptimizerChoice, Workload


def chosen_optimizer(workload: Workload, name: str | None, lr: float | None) -> OptimizerChoice:
    """The workload's own with its settings, or another of ``torch.optim`` with torch's; at the learning rate ``lr``.

    Raises:
        UsageError: torch has none of that name.
    """
    own = workload.optimizer
    kind = own.kind if name is None else _named(name)
    settings = dict(own.settings) if kind is own.kind else {}
    if lr is not None:
        settings["lr"] = lr
    settings.setdefault("lr", inspect.signature(kind).parameters["lr"].default)
    return OptimizerChoice(kind, settings)


def _named(name: str) -> type[torch.optim.Optimizer]:
    kinds = [kind for kind in vars(torch.optim).values() if inspect.isclass(kind)]
    known = {kind.__name__.lower(): kind for kind in kinds if issubclass(kind, torch.optim.Optimizer)}
    for unfit in ("optimizer", "lbfgs", "sparseadam", "muon"):  # abstract; a closure, sparse gradients, matrices only
        known.pop(unfit, None)
    if name.lower() not in known:
        raise UsageError(f"--optimizer must be one of {', '.join(sorted(known))}; got {name!r}")
    return known[name.lower()]
