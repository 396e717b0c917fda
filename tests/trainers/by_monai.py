"""MONAI: a 3D U-Net, its transforms, and inference by sliding windows."""

from typing import Any

import torch

from tests.trainers.run import Run
from torch_lms.targets.torchvision_operators import define_torchvision_operators

define_torchvision_operators()

import monai  # noqa: E402
from monai.inferers import sliding_window_inference  # noqa: E402
from monai.transforms import Compose, RandCropByPosNegLabeld, RandFlipd, RandGaussianNoised  # noqa: E402


def unet(run: Run) -> dict[str, Any]:
    """Segments spheres in volumes; a checkpoint is saved and loaded."""
    monai.utils.set_determinism(0)
    keys = ("image", "label")
    transforms = Compose(
        [
            RandCropByPosNegLabeld(keys, label_key="label", spatial_size=(32, 32, 32), num_samples=2),
            RandFlipd(keys, prob=0.5),
            RandGaussianNoised("image", prob=1.0),
        ]
    )
    data = monai.data.CacheDataset([_volume() for _ in range(6)], transforms, progress=False)
    loader = monai.data.DataLoader(data, batch_size=2, num_workers=1)
    model = monai.networks.nets.UNet(
        spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=2
    )
    loss_of = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    metric = monai.metrics.DiceMetric(include_background=False)
    losses = []
    for _ in range(4):
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, run.folder / "last.pt")
    model.load_state_dict(torch.load(run.folder / "last.pt")["model"])
    model.eval()
    volume = _volume()
    with torch.no_grad():
        found = sliding_window_inference(volume["image"][None], (32, 32, 32), 2, model)
    metric(found.argmax(1, keepdim=True), volume["label"][None])
    weights, state = model.state_dict(), optimizer.state_dict()["state"]
    return {"losses": losses, "dice": metric.aggregate(), "found": found, "weights": weights, "state": state}


def _volume() -> dict[str, torch.Tensor]:
    """A sphere in noise: image and label, each (1, 48, 48, 48)."""
    axis = torch.linspace(-1, 1, 48)
    distance = (axis[:, None, None] ** 2 + axis[None, :, None] ** 2 + axis[None, None, :] ** 2).sqrt()
    label = (distance < 0.4 + 0.4 * torch.rand(())).float()[None]
    return {"image": label + 0.3 * torch.randn(label.shape), "label": label}
