"""Shards by Lightning (FSDP2, ModelParallelStrategy) under its callback: equal to the bit, and under the limit.

torchrun --standalone --nproc-per-node 2 -m tests.distributed.lightning_fsdp2
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import torch_lms
from tests.bits import same_bits
from torch_lms.lightning import LMSCallback  # before Lightning, where torchvision is not of PyTorch's build

import lightning.pytorch as pl  # isort: skip
from lightning.pytorch.strategies import ModelParallelStrategy  # isort: skip

WIDTH = 256
LIMIT = 1_500_000


class Regression(pl.LightningModule):
    """A perceptron whose every layer is divided among the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)))
        self.losses: list[torch.Tensor] = []

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for layer in self.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.layers, mesh=mesh)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = (self.layers(batch) - batch).square().mean()
        self.losses.append(loss.detach().clone())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def trained(callbacks: list[Any]) -> list[torch.Tensor]:
    """Losses of four epochs, and this rank's shards."""
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(256, WIDTH), batch_size=32))
    shards = [value.to_local() if isinstance(value, DTensor) else value for value in model.parameters()]
    return [*model.losses, *(shard.detach() for shard in shards)]


def main() -> None:
    expected = trained([])
    found = trained([LMSCallback(limit=LIMIT, min_size=4096)])
    stats = torch_lms.stats()
    is_equal = same_bits(found, expected)
    print(
        f"Lightning with FSDP2, rank {dist.get_rank()}: {len(expected)} tensors {'equal' if is_equal else 'DIFFER'}, "
        f"demand {stats.demand_bytes}, limit {LIMIT}, peak {stats.peak_resident_bytes}, "
        f"{stats.planned_steps} of {stats.steps} steps planned, {stats.evictions} evictions",
        flush=True,
    )
    is_paged = stats.demand_bytes > LIMIT >= stats.peak_resident_bytes and stats.evictions > 0
    os._exit(not (is_equal and is_paged))  # see torch_lms_workloads.training.ranks.leave


if __name__ == "__main__":
    main()
