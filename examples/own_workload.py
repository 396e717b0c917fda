"""A workload of your own: `torch-lms train examples/own_workload.py:thin --data synthetic --steps 20`."""

from torch import nn
from torch.optim import AdamW

from torch_lms_workloads.losses import segmentation
from torch_lms_workloads.samples import labelled_images
from torch_lms_workloads.workload import Bounds, OptimizerChoice, Workload


def build(classes: int, width: int) -> nn.Module:
    """Images (batch, 3, height, width) to logits (batch, classes, height, width)."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, classes, 1),
    )


thin = Workload(
    name="thin",
    title="Three convolutions, semantic segmentation",
    build=build,
    sample=labelled_images,
    loss=segmentation,
    dimensions=2,
    size=256,
    batch=4,
    optimizer=OptimizerChoice(AdamW, {"lr": 1e-3}),
    options={"classes": 4, "width": 32},
    bounds=lambda options: Bounds(size=4),
    metric="mIoU",
)
