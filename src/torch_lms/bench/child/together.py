"""The ranks of a trial: they find each other, average their gradients, and agree."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_lms.bench.trial import Asked


def device_of(asked: Asked) -> torch.device:
    """The CPU for all ranks, or an accelerator for each."""
    if asked.device == "cpu":
        return torch.device("cpu")
    device = torch.device(asked.device, asked.rank)
    torch.accelerator.set_device_index(device)
    return device


def join(asked: Asked, device: torch.device) -> None:
    """Wait for the other ranks, if there are any."""
    count = asked.setting.gpus
    if count == 1:
        return
    transport = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(transport, f"file://{asked.meeting}", rank=asked.rank, world_size=count)


def averaging(model: nn.Module, device: torch.device) -> nn.Module:
    """``model``, whose gradients are the mean of all ranks'; as it is if there is one rank."""
    if not dist.is_initialized():
        return model
    return DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device.index])


def any_rank(says_so: bool) -> bool:
    """Whether any rank says so: the same on all."""
    if not dist.is_initialized():
        return says_so
    votes = torch.tensor(float(says_so))
    dist.all_reduce(votes)
    return bool(votes)
