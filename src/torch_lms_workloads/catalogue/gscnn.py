"""Gated-SCNN on Cityscapes. Settings of arXiv 1907.05740, section 4: a batch of 16 over 8 devices."""

from operator import itemgetter

from torch.optim import SGD

from torch_lms_workloads.dual_task import dual_task
from torch_lms_workloads.nets.gscnn import GatedSCNN
from torch_lms_workloads.samples import outlined_images, with_outlines
from torch_lms_workloads.workload import Bounds, OptimizerChoice, Workload

gscnn = Workload(
    name="gscnn",
    title="Gated-SCNN, semantic segmentation with boundaries",
    build=GatedSCNN,
    sample=outlined_images,
    loss=dual_task,
    dimensions=2,
    size=800,
    batch=2,
    optimizer=OptimizerChoice(SGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}),
    options={"backbone": "wide_resnet38", "classes": 19},
    bounds=lambda options: Bounds(size=32, batch=2),
    metric="mIoU",
    targets=with_outlines,
    scores=itemgetter(0),
)
