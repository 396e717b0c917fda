"""A script for two ranks that knows nothing of LMS. Each rank has it all the same:

    torch-lms run --limit 6MB --min-size 16KiB torchrun --nproc-per-node 2 examples/ddp.py

Without LMS, for comparison: torchrun --nproc-per-node 2 examples/ddp.py. The digests of the weights are equal.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
network = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)))
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

torch.manual_seed(1 + dist.get_rank())  # each rank has data of its own
for _ in range(8):
    batch = torch.randn(128, 256)
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

weights = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
print(f"rank {dist.get_rank()}: weights {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)
dist.destroy_process_group()
