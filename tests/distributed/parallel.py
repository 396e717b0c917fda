"""A model's layers over ranks, and its layers' halves, and optimizer state, with LMS on in each process: the same bits.

torchrun --standalone --nproc-per-node 2 -m tests.distributed.parallel [--device cuda]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.processes import compare

WIDTH, BATCH, STEPS = 64, 32, 3


class Block(nn.Module):
    """Half of a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(BATCH, WIDTH) of both."""
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def train(rank: int, device: torch.device) -> list[torch.Tensor]:
    """By each of the ways; every tensor that must be equal."""
    torch.manual_seed(0)
    return [*by_halves(device), *by_stages(rank, device), *with_sharded_state(rank, device)]


def by_halves(device: torch.device) -> list[torch.Tensor]:
    """Tensor parallelism: each rank has half of each layer's columns or rows."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = nn.Sequential(*(Block() for _ in range(3))).to(device)
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    take_steps(model, torch.optim.AdamW(model.parameters()), device)
    return [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]


def by_stages(rank: int, device: torch.device) -> list[torch.Tensor]:
    """Pipelining: each rank has a stage, through which pieces of the batch go, forward and backward in turns."""
    ranks = dist.get_world_size()
    stages = [nn.Sequential(*(Block() for _ in range(2))).to(device) for _ in range(ranks)]
    schedule = Schedule1F1B(PipelineStage(stages[rank], rank, ranks, device), n_microbatches=4, loss_fn=mse_loss)
    optimizer = torch.optim.AdamW(stages[rank].parameters())
    for _ in range(STEPS):
        batch = torch.randn(BATCH, WIDTH, device=device)
        given = [batch] if rank == 0 else []
        schedule.step(*given, target=torch.ones_like(batch) if rank == ranks - 1 else None)
        optimizer.step()
        optimizer.zero_grad()
    return list(stages[rank].parameters())


def with_sharded_state(rank: int, device: torch.device) -> list[torch.Tensor]:
    """Each rank has the optimizer's state of some weights. Gradients come by a hook, on a thread of the group's."""
    model = DistributedDataParallel(nn.Sequential(*(Block() for _ in range(3))).to(device), bucket_cap_mb=0.1)
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    torch.manual_seed(1 + rank)
    take_steps(model, optimizer, device)
    return list(model.parameters())


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """STEPS of them."""
    for _ in range(STEPS):
        mse_loss(model(torch.randn(BATCH, WIDTH, device=device)), torch.ones(BATCH, WIDTH, device=device)).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    compare("parallel", train)
