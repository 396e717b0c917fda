"""FSDP2 (``fully_shard``): of parameters, gradients and optimizer state each rank holds a part."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from torch_lms_workloads.training.checkpoints import owned
from torch_lms_workloads.training.engines.base import Engine, State

LEAST = 1 << 20
"""Parameters of a part that is gathered by itself; smaller ones come with what is around them."""

GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True)
SPREAD = StateDictOptions(full_state_dict=True)


class Fsdp(Engine):
    """A checkpoint holds the whole, the optimizer's state by the names of parameters."""

    runs_together = True

    def wrapped(self, model: nn.Module, device: torch.device) -> nn.Module:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in parts(model):
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def bare(self, model: nn.Module) -> nn.Module:
        return model

    def apart(self, model: nn.Module) -> AbstractContextManager[None]:
        assert isinstance(model, FSDPModule)
        return _unsynchronized(model)

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
        return {
            "model": get_model_state_dict(model, options=GATHERED),
            "optimizer": get_optimizer_state_dict(model, optimizer, options=GATHERED),
        }

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        _load_weights(model, state["model"])
        set_optimizer_state_dict(model, optimizer, owned(state["optimizer"]), options=SPREAD)


def parts(model: nn.Module) -> list[nn.Module]:
    """Modules that are gathered by themselves: the large ones in a row, each of which is sure to be called."""
    rows = [module for module in model.modules() if isinstance(module, nn.Sequential)]
    children = [child for row in rows for child in row.children() if not isinstance(child, nn.Sequential)]
    large = [child for child in children if sum(parameter.numel() for parameter in child.parameters()) >= LEAST]
    inner = {module for part in large for module in part.modules() if module is not part}
    return [part for part in dict.fromkeys(large) if part not in inner]


def _load_weights(model: nn.Module, whole: Mapping[str, Tensor]) -> None:
    """Not by ``set_model_state_dict``, which fails where a module has two names."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            given = whole[name].to(value.device)
            if isinstance(value, DTensor):
                value.copy_(distribute_tensor(given, value.device_mesh, value.placements))
            else:
                value.copy_(given)


@contextmanager
def _unsynchronized(model: FSDPModule) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
