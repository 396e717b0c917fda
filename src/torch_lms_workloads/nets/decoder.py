"""The decoder of DeepLabv3+ (arXiv 1802.02611, sections 3.1 and 4.1)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torch_lms_workloads.nets.layers import conv_norm_act, resized

FINE_WIDTH = 48
WIDTH = 256


class Decoder(nn.Module):
    """Sharpens a coarse map by a fine one, and classifies each pixel.

    Args:
        coarse: channels of the coarse map.
        fine: channels of the fine map.
        classes: channels of the result.
        conv: makes a 3x3 convolution.
        narrow: makes the 1x1 convolution of the fine map.
    """

    def __init__(
        self,
        coarse: int,
        fine: int,
        classes: int,
        conv: Callable[[int, int, int], nn.Module],
        narrow: Callable[[int, int], nn.Module] = conv_norm_act,
    ) -> None:
        super().__init__()
        self.narrow = narrow(fine, FINE_WIDTH)
        self.refine = nn.Sequential(conv(coarse + FINE_WIDTH, WIDTH, 3), conv(WIDTH, WIDTH, 3))
        self.classify = nn.Conv2d(WIDTH, classes, 1)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        """Logits, as large as ``fine``."""
        merged = torch.cat([resized(coarse, fine.shape[2:]), self.narrow(fine)], dim=1)
        logits: Tensor = self.classify(self.refine(merged))
        return logits
