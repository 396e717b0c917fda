"""What is trained: scalar losses of a network's outputs and the targets.

No shape depends on values, so all of it can be traced.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = 255
"""The label of pixels that do not count, as in PASCAL VOC and Cityscapes."""

AUXILIARY_WEIGHT = 0.3
"""Of each of GoogLeNet's auxiliary classifiers (arXiv 1409.4842, section 5)."""


def classification(logits: Tensor, classes: Tensor) -> Tensor:
    """Cross entropy of logits (batch, classes)."""
    return F.cross_entropy(logits, classes)


def segmentation(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of logits (batch, classes, height, width)."""
    return _over_known(logits, labels)


def next_token(logits: Tensor, following: Tensor) -> Tensor:
    """Cross entropy of logits (batch, length, vocabulary)."""
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def with_auxiliaries(outputs: Sequence[Tensor], classes: Tensor) -> Tensor:
    """Cross entropy of the first logits, and a little of that of the others."""
    main, *others = (F.cross_entropy(logits, classes) for logits in outputs)
    return main + AUXILIARY_WEIGHT * torch.stack(others).sum()


def volumes(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy plus soft Dice, as in nnU-Net (arXiv 1904.08128).

    Args:
        outputs: logits (batch, classes, *sides); with deep supervision (batch, heads, classes, *sides): each head
            weighs half as much as the one before, all of them 1.
        labels: classes (batch, *sides).
    """
    if outputs.ndim == labels.ndim + 1:
        return _overlap(outputs, labels)
    heads = outputs.unbind(1)
    weights = [0.5**head for head in range(len(heads))]
    losses = torch.stack([w * _overlap(logits, labels) for w, logits in zip(weights, heads, strict=True)])
    return losses.sum() / sum(weights)


def _overlap(logits: Tensor, labels: Tensor) -> Tensor:
    return _over_known(logits, labels) + _dice(logits.softmax(1), labels)


def _over_known(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of the cross entropy over what has a known label; 0 if nothing has.

    CUDA's own mean over the pixels of maps adds them up in any order.
    """
    entropies = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    return entropies.sum() / (labels != IGNORED).sum().clamp(min=1)


def _dice(shares: Tensor, labels: Tensor, smooth: float = 1e-5) -> Tensor:
    """1 - the mean over images and classes of 2 |A and B| / (|A| + |B|)."""
    classes = torch.arange(shares.shape[1], device=shares.device).view(1, -1, *[1] * (shares.ndim - 2))
    truth = labels.unsqueeze(1) == classes
    sides = tuple(range(2, shares.ndim))
    common = (shares * truth).sum(sides)
    both = shares.sum(sides) + truth.sum(sides)
    return 1 - ((2 * common + smooth) / (both + smooth)).mean()
