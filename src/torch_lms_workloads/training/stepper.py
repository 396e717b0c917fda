"""One step: batches forward and backward, and the optimizer."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from torch_lms_workloads.training.engines.base import Engine
from torch_lms_workloads.training.placing import Placing
from torch_lms_workloads.workload import Workload


class Stepper:
    """Called, makes a step.

    Attributes:
        model: as the engine wrapped it.
        optimizer: of its parameters.
        scaler: keeps small gradients of half precision from vanishing.
    """

    def __init__(
        self,
        workload: Workload,
        engine: Engine,
        placing: Placing,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        accumulate: int,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler(placing.device.type, enabled=placing.dtype is torch.float16)
        self._workload = workload
        self._engine = engine
        self._placing = placing
        self._accumulate = accumulate

    def __call__(self, batches: Iterator[list[Tensor]], lr: float) -> float:
        """The mean loss of this rank's next batches, at the learning rate ``lr``."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        losses = [self._backward(*next(batches), is_last=n == self._accumulate) for n in self._numbers()]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return float(torch.stack(losses).sum())

    def _numbers(self) -> range:
        return range(1, self._accumulate + 1)

    def _backward(self, images: Tensor, targets: Tensor, *, is_last: bool) -> Tensor:
        placing, workload = self._placing, self._workload
        wanted = workload.targets(targets.to(placing.device, non_blocking=True))
        with nullcontext() if is_last else self._engine.apart(self.model):
            with placing.autocast():
                loss = workload.loss(self.model(placing.placed(images)), wanted) / self._accumulate
            self.scaler.scale(loss).backward()
        return loss.detach()
