"""DistributedDataParallel: the whole network on each rank, gradients averaged."""

from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_lms_workloads.training.engines.whole import Whole


class Ddp(Whole):
    """Each rank normalizes by the statistics of its own batch; those that are kept are the first rank's."""

    def wrapped(self, model: nn.Module, device: torch.device) -> nn.Module:
        return DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device.index])

    def bare(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, DistributedDataParallel)
        inner: nn.Module = model.module
        return inner

    def apart(self, model: nn.Module) -> AbstractContextManager[None]:
        assert isinstance(model, DistributedDataParallel)
        return model.no_sync()
