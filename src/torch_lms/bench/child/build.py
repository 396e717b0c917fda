"""The target with bytes: its model, its inputs, its loss and its optimizer, on the device."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torch_lms.bench.child.together import averaging
from torch_lms.bench.trial import Asked
from torch_lms.bench.ways import CHECKPOINT
from torch_lms.capture.fake import new_optimizer
from torch_lms.errors import UnsupportedError
from torch_lms.targets import AMP, Setting, Target, built, checkpoint_blocks

_OF_LIBRARIES = ("hf:", "timm:", "torchvision:")
"""Targets whose inputs have no values of their own."""


@dataclass(frozen=True)
class Built:
    """A step that can be taken.

    Attributes:
        model: in training.
        forward: gives the loss.
        update: the optimizer.
    """

    model: nn.Module
    forward: Callable[[], Tensor]
    update: torch.optim.Optimizer | None


def build(target: Target, asked: Asked, device: torch.device) -> Built:
    """Make the model and a batch. Each rank has a batch of its own; the model is the first rank's on all.

    Raises:
        UsageError: the target does not keep the contract, or cannot take the setting.
        UnsupportedError: the way needs blocks, and there are none.
    """
    name, setting = asked.target, asked.setting
    torch.manual_seed(asked.rank)
    with torch.device(device):
        model, inputs, loss = built(name, target, setting)
    model = model.to(device)
    inputs = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), inputs)
    if name.startswith(_OF_LIBRARIES):
        _fill(inputs)
    if asked.way == CHECKPOINT and not checkpoint_blocks(model, keeps_random_state=True):
        raise UnsupportedError(
            f"{name} has no rows of blocks to checkpoint: expected a Sequential or ModuleList of modules of one class"
        )
    model.train(not setting.is_inference)
    if not setting.is_inference:
        model = averaging(model, device)
    return Built(model, _forward(model, inputs, loss, setting, device), _optimizer(target, model, setting, device))


def _optimizer(
    target: Target, model: nn.Module, setting: Setting, device: torch.device
) -> torch.optim.Optimizer | None:
    if setting.is_inference:
        return None
    chosen = setting.optimizer or getattr(target, "optimizer", None) or "sgd"
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return new_optimizer(chosen, trained, device.type)


def _forward(
    model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor] | None, setting: Setting, device: torch.device
) -> Callable[[], Tensor]:
    amp = AMP[setting.amp]

    def around() -> AbstractContextManager[Any]:
        return nullcontext() if amp is None else torch.autocast(device.type, getattr(torch, amp))

    def forward() -> Tensor:
        with around():
            outputs = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
            return _mean_of(outputs) if loss is None else loss(outputs)

    return forward


def _mean_of(outputs: Any) -> Tensor:
    """The sum of the means of all floating-point tensors there: as ``trace_step`` does without a loss."""
    leaves = pytree.tree_leaves(dict(outputs) if isinstance(outputs, Mapping) else outputs)
    means = [leaf.mean() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.stack(means).sum()


def _fill(inputs: Any) -> None:
    for tensor in pytree.tree_leaves(dict(inputs) if isinstance(inputs, Mapping) else inputs):
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            with torch.no_grad():
                tensor.normal_()
