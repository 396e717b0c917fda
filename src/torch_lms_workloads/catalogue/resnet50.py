"""ResNet-50, or another classification network of timm, on ImageNet. Settings of arXiv 1512.03385, section 3.4."""

from torch.optim import SGD

from torch_lms_workloads.losses import classification
from torch_lms_workloads.nets.classifier import classifier
from torch_lms_workloads.samples import classified_images
from torch_lms_workloads.workload import Bounds, OptimizerChoice, Workload

resnet50 = Workload(
    name="resnet50",
    title="ResNet-50, or another network of timm, image classification",
    build=classifier,
    sample=classified_images,
    loss=classification,
    dimensions=2,
    size=224,
    batch=256,
    optimizer=OptimizerChoice(SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}),
    options={"model": "resnet50", "classes": 1000},
    bounds=lambda options: Bounds(size=64),
    metric="top-1",
)
