"""One training step of a workload."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_lms_workloads.workload import Workload


@dataclass(frozen=True)
class Step:
    """What was made for it, and what came of it."""

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    outputs: Any
    loss: torch.Tensor

    @property
    def untrained(self) -> list[str]:
        """Parameters without a gradient."""
        return [name for name, parameter in self.model.named_parameters() if parameter.grad is None]


def one_step(workload: Workload, **chosen: Any) -> Step:
    model, inputs, loss_of = workload(**chosen)
    optimizer = workload.optimizer(model.parameters())
    outputs = model(*inputs)
    loss = loss_of(outputs)
    loss.backward()
    optimizer.step()
    return Step(model, inputs, outputs, loss)
