"""Lightning."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from tests.trainers.run import Run
from torch_lms.lightning import LMSCallback  # before Lightning, where torchvision is not of PyTorch's build

import lightning.pytorch as pl  # isort: skip


class Autoencoder(pl.LightningModule):
    """Convolutions with batch normalization and dropout."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 32, 32, 32, 32, 3]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.GELU(), nn.Dropout(0.1))
                for a, b in pairwise(widths)
            )
        )
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = (self.layers(batch) - batch).square().mean()
        self.log("loss", loss)
        self.losses.append(loss.detach().clone())
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("validation", (self.layers(batch) - batch).abs().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fitted(
    run: Run, precision: str = "32-true", accumulate: int = 1, devices: int = 1, is_resumed: bool = False
) -> dict[str, Any]:
    """Four epochs, with a checkpoint after each; or three, and one more from the checkpoint."""
    pl.seed_everything(0, verbose=False)
    callbacks = run.callbacks(LMSCallback)
    images = torch.randn(32, 3, 32, 32)

    def loader() -> Any:
        return torch.utils.data.DataLoader(images, batch_size=4)

    def trained(epochs: int, checkpoint: str | None = None) -> Any:
        trainer = pl.Trainer(
            default_root_dir=run.folder,
            max_epochs=epochs,
            accelerator="cpu",
            devices=devices,
            strategy="ddp" if devices > 1 else "auto",
            precision=precision,
            accumulate_grad_batches=accumulate,
            callbacks=[*callbacks, pl.callbacks.ModelCheckpoint(run.folder, save_last=True)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Autoencoder()
        trainer.fit(model, loader(), loader(), ckpt_path=checkpoint)
        metrics = {name: value for name, value in trainer.callback_metrics.items() if not name.startswith("lms_")}
        return {"losses": model.losses, "weights": model.state_dict(), "metrics": metrics}

    if not is_resumed:
        return trained(4)
    first = trained(3)
    torch.manual_seed(1)
    return {"first": first, "resumed": trained(4, str(run.folder / "last.ckpt"))}
