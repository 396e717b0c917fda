"""Lightning under LMS: python examples/lightning_ddp.py [--devices 2]

Without LMS, for comparison: --without-lms. Prints a digest of the final weights: both are equal.
"""

import hashlib

import click
import torch
from torch import nn

import torch_lms
from torch_lms.lightning import LMSCallback  # before Lightning, where torchvision is not of PyTorch's build

import lightning.pytorch as pl  # isort: skip

WIDTH = 256


class Regression(pl.LightningModule):
    """A perceptron that learns to give back its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = (self.layers(batch) - batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


@click.command()
@click.option("--devices", default=1, show_default=True, help="Processes, each on a device of its own.")
@click.option("--limit", default="4MB", show_default=True, help="Of each process.")
@click.option("--without-lms", is_flag=True)
def main(devices: int, limit: str, without_lms: bool) -> None:
    """Train two epochs."""
    pl.seed_everything(0, verbose=False)
    callbacks = [] if without_lms else [LMSCallback(limit=limit, min_size="4KiB")]
    data = torch.utils.data.DataLoader(torch.randn(1024, WIDTH), batch_size=64)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, data)
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(f"rank {trainer.global_rank}: weights {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)
    if not without_lms:
        stats = torch_lms.stats()
        print(f"rank {trainer.global_rank}: {stats.planned_steps} of {stats.steps} steps planned", flush=True)


if __name__ == "__main__":
    main()
