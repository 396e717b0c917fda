"""DeepLabv3+ on PASCAL VOC 2012. Settings of arXiv 1706.05587, section 4, which arXiv 1802.02611 keeps.

Momentum and weight decay are those of the authors' training script.
"""

from torch.optim import SGD

from torch_lms_workloads.losses import segmentation
from torch_lms_workloads.nets.deeplabv3plus import DeepLabV3Plus
from torch_lms_workloads.samples import labelled_images
from torch_lms_workloads.workload import Bounds, OptimizerChoice, Options, Workload


def _bounds(options: Options) -> Bounds:
    return Bounds(size=2 * max(16, options["output_stride"]), batch=1 if options["freeze_batch_norm"] else 2)


deeplabv3plus = Workload(
    name="deeplabv3plus",
    title="DeepLabv3+, semantic segmentation",
    build=DeepLabV3Plus,
    sample=labelled_images,
    loss=segmentation,
    dimensions=2,
    size=513,
    batch=16,
    optimizer=OptimizerChoice(SGD, {"lr": 0.007, "momentum": 0.9, "weight_decay": 4e-5}),
    options={"backbone": "xception65", "output_stride": 16, "classes": 21, "freeze_batch_norm": False},
    bounds=_bounds,
    metric="mIoU",
)
