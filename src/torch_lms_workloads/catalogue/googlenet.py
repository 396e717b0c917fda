"""GoogLeNet with batch normalization on ImageNet. Settings of arXiv 1502.03167, section 4.2, BN-x5."""

from torch.optim import SGD

from torch_lms_workloads.losses import with_auxiliaries
from torch_lms_workloads.nets.googlenet import googlenet as build
from torch_lms_workloads.samples import classified_images
from torch_lms_workloads.workload import Bounds, OptimizerChoice, Workload

googlenet = Workload(
    name="googlenet",
    title="GoogLeNet, image classification",
    build=build,
    sample=classified_images,
    loss=with_auxiliaries,
    dimensions=2,
    size=224,
    batch=32,
    optimizer=OptimizerChoice(SGD, {"lr": 0.0075, "momentum": 0.9}),
    options={"classes": 1000},
    bounds=lambda options: Bounds(size=64),
    metric="top-1",
)
