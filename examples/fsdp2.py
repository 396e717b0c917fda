"""Parameters in shards on two ranks, and each rank's shards, gradients and optimizer state under a limit:

    torch-lms run --limit 10MB --min-size 16KiB torchrun --nproc-per-node 2 examples/fsdp2.py

Without LMS, for comparison: torchrun --nproc-per-node 2 examples/fsdp2.py. The digests of the shards are equal.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(6)]
model = nn.Sequential(*layers)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

torch.manual_seed(1 + dist.get_rank())  # each rank has data of its own
for _ in range(6):
    loss = model(torch.randn(4, 32, 128)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

shards = b"".join(parameter.to_local().detach().numpy().tobytes() for parameter in model.parameters())
print(f"rank {dist.get_rank()}: shards {hashlib.sha256(shards).hexdigest()[:16]}", flush=True)
dist.destroy_process_group()
