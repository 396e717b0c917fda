"""What a way of training together has to offer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

State = dict[str, Any]


class Engine(ABC):
    """
    Attributes:
        runs_together: whether a rank's forward waits for those of the others.
    """

    runs_together = False

    @abstractmethod
    def wrapped(self, model: nn.Module, device: torch.device) -> nn.Module:
        """What is called in training."""

    @abstractmethod
    def bare(self, model: nn.Module) -> nn.Module:
        """Of what ``wrapped`` returned, what is called in validation."""

    @abstractmethod
    def apart(self, model: nn.Module) -> AbstractContextManager[None]:
        """While gradients are added up that another batch will be added to: they need not be exchanged yet."""

    @abstractmethod
    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
        """Of all of the network: "model" and "optimizer". All ranks call it; that of the first is whole."""

    @abstractmethod
    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """What ``state`` gave. All ranks call it with the whole."""
