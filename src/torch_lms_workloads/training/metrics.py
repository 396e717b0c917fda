"""How good a network is, by torchmetrics: counted sample by sample, over all ranks."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassJaccardIndex

from torch_lms_workloads.workload import MetricName


class Dice(MulticlassConfusionMatrix):
    """2 |A and B| / (|A| + |B|) over all voxels, the mean of the classes that occur, but for class 0.

    torchmetrics' own takes eight bytes a voxel for each class.
    """

    def compute(self) -> Tensor:
        both = self.confmat.sum(0) + self.confmat.sum(1)
        occurs = both > 0
        occurs[0] = False
        shares = 2 * self.confmat.diag() / both
        return shares[occurs].mean()


def new_metric(name: MetricName, classes: int, ignored: int | None) -> Metric:
    """Takes classes found and true ones, on the CPU."""
    match name:
        case "mIoU":
            return MulticlassJaccardIndex(classes, ignore_index=ignored, validate_args=False)
        case "Dice":
            return Dice(classes, ignore_index=ignored, validate_args=False)
        case "top-1":
            return MulticlassAccuracy(classes, average="micro", validate_args=False)


@contextmanager
def counting() -> Iterator[None]:
    """While a metric counts: whole numbers are the same in any order, and torchmetrics' deterministic way takes eight
    bytes for each pixel and pair of classes.
    """
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(0)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
