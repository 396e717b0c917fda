"""What Gated-SCNN is trained for (arXiv 1907.05740, section 3): classes, boundaries, and that the two agree."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_lms_workloads.edges import LEAST, slope
from torch_lms_workloads.losses import IGNORED

EDGE_WEIGHT = 20.0
"""The paper's weight of the boundaries' cross entropy; the other terms weigh 1."""

SURE = 0.8
"""From this probability on, the network says that there is a boundary."""

STEEP = 10 * LEAST
"""From this slope on, there is one between classes."""


def dual_task(outputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    """The four terms of the paper, together.

    Args:
        outputs: logits of classes (batch, classes, height, width) and of a boundary (batch, 1, height, width).
        targets: classes (batch, height, width), ``IGNORED`` if unknown; (batch, 1, height, width), 1 at a boundary.
    """
    (logits, edge_logits), (labels, edges) = outputs, targets
    pixelwise = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    known = (labels != IGNORED).to(logits.dtype)
    sure = (edge_logits.detach().sigmoid() > SURE).squeeze(1).to(logits.dtype)
    return (
        _mean(pixelwise, known)
        + EDGE_WEIGHT * balanced(edge_logits, edges)
        + outlines_differ(logits, labels)
        + _mean(pixelwise, known * sure)
    )


def balanced(logits: Tensor, edges: Tensor) -> Tensor:
    """Binary cross entropy; both kinds of pixels weigh the same in all (arXiv 1504.06375, equation 2)."""
    share = edges.mean()
    weights = torch.where(edges > 0, 1 - share, share)
    return F.binary_cross_entropy_with_logits(logits, edges, weights)


def outlines_differ(logits: Tensor, labels: Tensor) -> Tensor:
    """How much the outlines of the predicted classes differ from those of the true ones, where there are any.

    The choice of a class has no slope: it is trained by that of a softmax with Gumbel noise (arXiv 1611.01144).
    """
    known = (labels != IGNORED).unsqueeze(1)
    chosen = F.gumbel_softmax(logits, tau=1.0, hard=True, dim=1)
    predicted, true = slope(chosen * known), slope(_planes(labels, logits) * known)
    there = ((predicted > STEEP) | (true > STEEP)).to(logits.dtype)
    return _mean((predicted - true).abs(), there) / 2**0.5


def _planes(labels: Tensor, like: Tensor) -> Tensor:
    """1 in the plane of a pixel's class, else 0. (one_hot counts the classes it finds: no shape known beforehand.)"""
    classes = torch.arange(like.shape[1], device=labels.device).view(1, -1, 1, 1)
    return (labels.unsqueeze(1) == classes).to(like.dtype)


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    """0 if there is nothing to take it of."""
    return (values * weights).sum() / weights.sum().clamp(min=1)
