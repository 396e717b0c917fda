"""A 3D U-Net on volumes of one channel. Settings of nnU-Net, arXiv 1904.08128."""

from torch.optim import SGD

from torch_lms_workloads.losses import volumes
from torch_lms_workloads.nets.unet3d import multiple_of
from torch_lms_workloads.nets.unet3d import unet3d as build
from torch_lms_workloads.samples import labelled_volumes
from torch_lms_workloads.workload import Bounds, OptimizerChoice, Options, Workload


def _bounds(options: Options) -> Bounds:
    multiple = multiple_of(options["levels"])
    return Bounds(size=2 * multiple, multiple=multiple)  # instance normalization needs more than one voxel


unet3d = Workload(
    name="unet3d",
    title="3D U-Net, segmentation of volumes",
    build=build,
    sample=labelled_volumes,
    loss=volumes,
    dimensions=3,
    size=128,
    batch=2,
    optimizer=OptimizerChoice(SGD, {"lr": 0.01, "momentum": 0.99, "nesterov": True, "weight_decay": 3e-5}),
    options={"classes": 3, "levels": 5, "channels": 32, "deep_supervision": False},
    bounds=_bounds,
    metric="Dice",
    channels=1,
)
