"""Atrous spatial pyramid pooling (arXiv 1706.05587), with convolutions of either kind."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from torch_lms_workloads.nets.layers import conv_norm_act

WIDTH = 256
"""Channels of each branch, and of the result."""

RATES = (6, 12, 18)
"""Dilations at output stride 16."""


def rates_at(output_stride: int) -> tuple[int, ...]:
    """The dilations that look as far at another stride (arXiv 1706.05587, section 3.3); never below 1."""
    return tuple(max(1, rate * 16 // output_stride) for rate in RATES)


class Aspp(nn.Module):
    """Looks at a map at several scales, and at its mean.

    Args:
        channels: of the map.
        rates: a branch of 3x3 convolutions for each of these dilations.
        conv: makes such a branch.
        further: channels of the maps that are merged with the branches.
        merge: makes the 1x1 convolution that merges them.
    """

    def __init__(
        self,
        channels: int,
        rates: Sequence[int],
        conv: Callable[[int, int, int, int], nn.Module],
        further: int = 0,
        merge: Callable[[int, int], nn.Module] = conv_norm_act,
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [conv_norm_act(channels, WIDTH), *(conv(channels, WIDTH, 3, rate) for rate in rates)]
        )
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv_norm_act(channels, WIDTH))
        self.merge = merge((len(self.branches) + 1) * WIDTH + further, WIDTH)

    def forward(self, maps: Tensor, *further: Tensor) -> Tensor:
        mean = self.mean(maps).expand(-1, -1, *maps.shape[2:])
        merged: Tensor = self.merge(torch.cat([*(branch(maps) for branch in self.branches), mean, *further], dim=1))
        return merged
