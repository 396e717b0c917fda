"""DistributedDataParallel with LMS on in each process equals it without, to the bit.

torchrun --standalone --nproc-per-node 2 -m tests.distributed.ddp [--device cuda]
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.processes import compare


def train(rank: int, device: torch.device) -> list[torch.Tensor]:
    """Three steps of two micro-batches each, the first without synchronization; every tensor that must be equal."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.SyncBatchNorm(16) if device.type == "cuda" else nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(32 * 16 * 16, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
    )
    model = DistributedDataParallel(network.to(device), bucket_cap_mb=0.25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        for is_last in (False, True):
            unsynchronized: AbstractContextManager[None] = nullcontext() if is_last else model.no_sync()
            with unsynchronized:
                loss = model(torch.randn(4, 3, 16, 16, device=device)).square().mean()
                loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    state = [v for slots in optimizer.state.values() for v in slots.values()]
    average = losses[-1].clone()
    dist.all_reduce(average)
    return [*losses, average, *model.parameters(), *model.buffers(), *state]


if __name__ == "__main__":
    compare("DDP", train)
