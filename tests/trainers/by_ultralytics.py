"""YOLO of ultralytics, without weights from elsewhere."""

import os
from pathlib import Path
from typing import Any

os.environ["YOLO_OFFLINE"] = "true"

import numpy as np
import torch
from PIL import Image

from tests.trainers.run import Run
from torch_lms.targets.torchvision_operators import define_torchvision_operators


def yolo(run: Run) -> dict[str, Any]:
    """Six epochs of YOLO11n on small images."""
    os.environ["YOLO_CONFIG_DIR"] = str(run.folder)
    define_torchvision_operators()
    from ultralytics import YOLO

    _use_its_own_suppression()
    data = _write_images(run.folder / "data")
    model = YOLO("yolo11n.yaml")
    model.train(
        data=str(data),
        epochs=6,
        imgsz=64,
        batch=4,
        nbs=4,  # an optimizer step for each batch
        device="cpu",
        workers=0,
        amp=False,
        plots=False,
        project=str(run.folder),
        name="run",
        seed=0,
        verbose=False,
    )
    return {
        "weights": lambda: _weights_of(run.folder / "run" / "weights" / "last.pt"),
        "losses": _losses(run.folder / "run" / "results.csv"),
    }


def _use_its_own_suppression() -> None:
    """Where torchvision's library is of another build of PyTorch, its ``nms`` cannot be called."""
    import torchvision
    from ultralytics.utils.nms import TorchNMS

    if not torchvision.extension._has_ops():
        torchvision.ops.nms = TorchNMS.nms


def _weights_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint, weights_only=False)["model"].state_dict()


def _losses(results: Path) -> list[str]:
    """Of all epochs; the second column is the time."""
    lines = [line.split(",") for line in results.read_text().splitlines()]
    return [",".join([line[0], *line[2:]]) for line in lines]


def _write_images(folder: Path) -> Path:
    """Rectangles, in what ultralytics calls a data set; its description."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        (folder / "images" / split).mkdir(parents=True)
        (folder / "labels" / split).mkdir(parents=True)
        for number in range(8):
            x, y = rng.uniform(0.3, 0.7, 2)
            pixels = rng.integers(0, 100, (64, 64, 3), dtype=np.uint8)
            pixels[int(y * 64) - 10 : int(y * 64) + 10, int(x * 64) - 10 : int(x * 64) + 10] = 255
            Image.fromarray(pixels).save(folder / "images" / split / f"{number}.png")
            label = f"0 {x:.4f} {y:.4f} {20 / 64} {20 / 64}\n"
            (folder / "labels" / split / f"{number}.txt").write_text(label)
    description = folder / "data.yaml"
    description.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n  0: rectangle\n")
    return description
