"""One process."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from torch_lms_workloads.training.engines.whole import Whole


class Alone(Whole):
    """Nobody to exchange anything with."""

    def wrapped(self, model: nn.Module, device: torch.device) -> nn.Module:
        return model

    def bare(self, model: nn.Module) -> nn.Module:
        return model

    def apart(self, model: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()
