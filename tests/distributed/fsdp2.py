"""FSDP2 (fully_shard) with LMS on in each process equals it without, to the bit.

torchrun --standalone --nproc-per-node 2 -m tests.distributed.fsdp2 [--device cuda]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.distributed.processes import compare


def train(rank: int, device: torch.device) -> list[torch.Tensor]:
    """Three steps; this rank's shard of every tensor that must be equal."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Linear(64, 8)).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 32, 64, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    state = [v for slots in optimizer.state.values() for v in slots.values()]
    held = [*losses, *model.parameters(), *state]
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in held]


if __name__ == "__main__":
    compare("FSDP2", train)
