"""How fast maps change from pixel to pixel."""

import torch
from torch import Tensor
from torch.nn import functional as F

LEAST = 1e-4
"""What a flat map has: the root of 0 has no slope to train along."""


def slope(maps: Tensor) -> Tensor:
    """The magnitude of each channel's gradient, smoothed by a small Gaussian: Sobel's filter over (1, 2, 1) twice.

    Args:
        maps: (batch, channels, height, width).

    Returns:
        The same shape, at least ``LEAST`` everywhere.
    """
    channels = maps.shape[1]
    across = _derivative(maps)
    filters = torch.stack([across, across.T]).unsqueeze(1).repeat(channels, 1, 1, 1)
    along = F.conv2d(F.pad(maps, (2, 2, 2, 2), mode="replicate"), filters, groups=channels)
    steepness: Tensor = along.unflatten(1, (channels, 2)).square().sum(2)
    return steepness.add(LEAST**2).sqrt()


def _derivative(like: Tensor) -> Tensor:
    """5x5: (1, 2, 1) * (1, 2, 1) down, (1, 2, 1) * (-1, 0, 1) across; a ramp of 1 a pixel gives 1."""
    smooth = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], dtype=like.dtype, device=like.device) / 16
    differ = torch.tensor([-1.0, -2.0, 0.0, 2.0, 1.0], dtype=like.dtype, device=like.device) / 8
    return torch.outer(smooth, differ)
