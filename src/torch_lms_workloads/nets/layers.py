"""The layers that the segmentation networks are made of."""

from torch import Tensor, nn
from torch.nn import functional as F


def conv_norm_act(before: int, after: int, kernel: int = 1, dilation: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution that keeps the size, batch normalization, ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, padding=padding, dilation=dilation, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


def pointwise(before: int, after: int) -> nn.Conv2d:
    """A 1x1 convolution, and nothing behind it."""
    return nn.Conv2d(before, after, 1, bias=False)


def separable(before: int, after: int, kernel: int = 3, dilation: int = 1) -> nn.Sequential:
    """A convolution per channel, then one across channels, both with normalization and ReLU (arXiv 1802.02611)."""
    return nn.Sequential(
        conv_norm_act(before, before, kernel, dilation, groups=before),
        conv_norm_act(before, after),
    )


def resized(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Bilinear, corners not aligned."""
    return maps if maps.shape[2:] == size else F.interpolate(maps, size, mode="bilinear", align_corners=False)
