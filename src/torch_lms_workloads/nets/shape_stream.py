"""The shape stream of Gated-SCNN (arXiv 1907.05740, section 3): finds boundaries, at the size of the image."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_lms_workloads.nets.layers import resized

WIDTHS = (64, 32, 16, 8)
"""Channels before the first gate, and after each."""


class GatedConvolution(nn.Module):
    """Lets pass, more strongly, what the regular stream also sees (the paper's gated convolutional layer)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        both = channels + 1
        self.attention = nn.Sequential(
            nn.BatchNorm2d(both),
            nn.Conv2d(both, both, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(both, 1, 1),
            nn.BatchNorm2d(1),
            nn.Sigmoid(),
        )
        self.weigh = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, shape: Tensor, regular: Tensor) -> Tensor:
        attention = self.attention(torch.cat([shape, regular], dim=1))
        gated: Tensor = self.weigh(shape * attention + shape)
        return gated


class ShapeStream(nn.Module):
    """A stem's map, then one gate for each of three maps of the regular stream, a residual block before each.

    Args:
        stem: channels of the stem's map.
        taps: channels of the maps that open the gates.
    """

    def __init__(self, stem: int, taps: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(WIDTHS))
        self.enter = nn.Identity() if stem == WIDTHS[0] else nn.Conv2d(stem, WIDTHS[0], 1)
        self.narrow = nn.ModuleList(nn.Sequential(_Residual(a), nn.Conv2d(a, b, 1)) for a, b in pairs)
        self.look = nn.ModuleList(nn.Conv2d(channels, 1, 1) for channels in taps)
        self.gates = nn.ModuleList(GatedConvolution(after) for _, after in pairs)
        self.leave = nn.Conv2d(WIDTHS[-1], 1, 1, bias=False)

    def forward(self, stem: Tensor, taps: Sequence[Tensor], size: tuple[int, ...]) -> Tensor:
        """Logits of a boundary, (batch, 1, *size)."""
        shape = self.enter(resized(stem, size))
        for narrow, look, gate, tap in zip(self.narrow, self.look, self.gates, taps, strict=True):
            shape = gate(narrow(shape), resized(look(tap), size))
        edges: Tensor = self.leave(shape)
        return edges


class _Residual(nn.Module):
    """Two 3x3 convolutions beside nothing."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, maps: Tensor) -> Tensor:
        return F.relu(maps + self.body(maps), inplace=True)
