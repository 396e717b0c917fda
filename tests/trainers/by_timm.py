"""timm's own training script, which its package leaves out."""

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.trainers.run import Run
from torch_lms.targets.torchvision_operators import define_torchvision_operators


def train_script(run: Run) -> dict[str, Any]:
    """Two epochs on small images, with an average of the weights."""
    assert run.source is not None
    define_torchvision_operators()
    _write_images(run.folder / "data")
    options = {
        "data-dir": run.folder / "data",
        "output": run.folder / "output",
        "experiment": "run",
        "model": "resnet18",
        "num-classes": 2,
        "img-size": 64,
        "batch-size": 4,
        "epochs": 3,
        "warmup-epochs": 1,
        "workers": 0,
        "device": "cpu",
        "opt": "adamw",
        "lr": 1e-3,
        "train-split": "train",
        "val-split": "validation",
    }
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    script = run.source / "train.py"
    before, sys.argv = sys.argv, [str(script), *given, "--no-prefetcher", "--model-ema"]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before
    return {
        "summary": (run.folder / "output" / "run" / "summary.csv").read_bytes(),
        "checkpoint": lambda: _tensors_of(run.folder / "output" / "run" / "last.pth.tar"),
    }


def _tensors_of(checkpoint: Path) -> list[Any]:
    last = torch.load(checkpoint, weights_only=False)
    return [last[name] for name in ("state_dict", "state_dict_ema", "optimizer")]


def _write_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("validation", 4)):
        for label in ("one", "two"):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{number}.png")
