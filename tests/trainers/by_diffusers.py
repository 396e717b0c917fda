"""A U-Net of diffusers."""

from typing import Any

import torch
from torch.nn import functional as F

from tests.trainers.run import Run
from torch_lms.targets.torchvision_operators import define_torchvision_operators

define_torchvision_operators()

import diffusers  # noqa: E402


def unet(run: Run) -> dict[str, Any]:
    """Learns to tell noise, is saved, loaded, and samples."""
    torch.manual_seed(0)
    model = diffusers.UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 32, 64),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        images, noise = torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32)
        times = torch.randint(0, 100, (4,))
        loss = F.mse_loss(model(scheduler.add_noise(images, noise, times), times).sample, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    pipeline = diffusers.DDPMPipeline(model, scheduler)
    pipeline.save_pretrained(run.folder / "pipeline")
    loaded = diffusers.DDPMPipeline.from_pretrained(run.folder / "pipeline")
    loaded.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(2)
    sampled = loaded(batch_size=2, generator=generator, num_inference_steps=5, output_type="np").images
    return {"losses": losses, "weights": model.state_dict(), "sampled": sampled.tobytes()}
