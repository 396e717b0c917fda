"""A training that knows nothing of LMS, and whose ranks somebody else starts."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.trainers.run import Run


def data_parallel(run: Run) -> dict[str, Any]:
    """DDP over gloo; each rank has data of its own."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)))
    model = DistributedDataParallel(network, bucket_cap_mb=0.25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(12):
        batch = torch.randn(256, 128)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        torch.save(network.state_dict(), run.folder / "last.pt")
    dist.barrier()
    weights = network.state_dict()
    dist.destroy_process_group()
    return {"losses": losses, "weights": weights}
