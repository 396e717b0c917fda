"""The whole network on each rank: checkpoints are the same however many ranks there are."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torch_lms_workloads.training.checkpoints import owned
from torch_lms_workloads.training.engines.base import Engine, State


class Whole(Engine):
    """What ways with the whole network have in common."""

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
        return {"model": self.bare(model).state_dict(), "optimizer": optimizer.state_dict()}

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        self.bare(model).load_state_dict(state["model"])
        optimizer.load_state_dict(owned(state["optimizer"]))
