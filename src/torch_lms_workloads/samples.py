"""Inputs and targets of the right shape, made up: random, but labels in patches, so that there are boundaries to find.

torch's own factories make them, so that they are where these put them: on the default device, or fake.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

PATCH = 8
"""Pixels along a side that share a label."""


class Sample(NamedTuple):
    """One batch.

    Attributes:
        inputs: what the network is called with.
        targets: what the loss compares its outputs with.
    """

    inputs: tuple[Tensor, ...]
    targets: Any


def classified_images(size: int, batch: int, options: Mapping[str, Any]) -> Sample:
    """Images (batch, 3, size, size); a class for each."""
    images = torch.rand(batch, 3, size, size)
    return Sample((images,), torch.randint(options["classes"], (batch,)))


def labelled_images(size: int, batch: int, options: Mapping[str, Any]) -> Sample:
    """Images (batch, 3, size, size); a class for each pixel."""
    images = torch.rand(batch, 3, size, size)
    return Sample((images,), _patches((batch, size, size), options["classes"]))


def outlined_images(size: int, batch: int, options: Mapping[str, Any]) -> Sample:
    """Images (batch, 3, size, size); for each pixel its class, and whether it lies on a boundary."""
    inputs, labels = labelled_images(size, batch, options)
    return Sample(inputs, with_outlines(labels))


def labelled_volumes(size: int, batch: int, options: Mapping[str, Any]) -> Sample:
    """Volumes (batch, 1, size, size, size); a class for each voxel."""
    volumes = torch.rand(batch, 1, size, size, size)
    return Sample((volumes,), _patches((batch, size, size, size), options["classes"]))


def tokens(size: int, batch: int, options: Mapping[str, Any]) -> Sample:
    """Sequences of tokens (batch, size); for each token the one after it."""
    text = torch.randint(options["vocabulary"], (batch, size + 1))
    return Sample((text[:, :-1],), text[:, 1:])


def with_outlines(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Classes, and where boundaries are."""
    return labels, outlines(labels)


def outlines(labels: Tensor, radius: int = 2) -> Tensor:
    """1 where more than one class lies within ``radius`` pixels, else 0.

    Args:
        labels: classes, (batch, height, width).

    Returns:
        (batch, 1, height, width), floating.
    """
    classes = labels.unsqueeze(1).float()
    window = 2 * radius + 1
    highest = F.max_pool2d(classes, window, stride=1, padding=radius)
    lowest = -F.max_pool2d(-classes, window, stride=1, padding=radius)
    return (highest != lowest).float()


def _patches(shape: tuple[int, ...], classes: int) -> Tensor:
    """Random classes, the same within patches along all dimensions but the first."""
    batch, *sides = shape
    labels = torch.randint(classes, (batch, *(-(-side // PATCH) for side in sides)))
    for dimension, side in enumerate(sides, start=1):
        labels = labels.repeat_interleave(PATCH, dimension).narrow(dimension, 0, side)
    return labels.contiguous()
