"""Gated-SCNN (arXiv 1907.05740): a segmentation network with a second stream for the shapes.

The paper takes the image's gradients from Canny's detector, outside the network. Here a fixed filter within makes them.
"""

import torch
from torch import Tensor, nn

from torch_lms_workloads.edges import slope
from torch_lms_workloads.nets.aspp import WIDTH, Aspp, rates_at
from torch_lms_workloads.nets.decoder import Decoder
from torch_lms_workloads.nets.layers import conv_norm_act, pointwise, resized
from torch_lms_workloads.nets.regular_stream import OUTPUT_STRIDE, regular_stream
from torch_lms_workloads.nets.shape_stream import ShapeStream


class GatedSCNN(nn.Module):
    """Images (batch, 3, *size) to logits of classes (batch, classes, *size) and of a boundary (batch, 1, *size).

    Args:
        backbone: the regular stream: ``wide_resnet38``, ``resnet50`` or ``resnet101``.
        classes: channels of the first result.

    Raises:
        UsageError: no such backbone.
    """

    def __init__(self, backbone: str, classes: int) -> None:
        super().__init__()
        self.regular = regular_stream(backbone)
        stem, fine, *gating = self.regular.channels
        self.shape = ShapeStream(stem, gating)
        self.with_gradients = nn.Sequential(nn.Conv2d(2, 1, 1, bias=False), nn.Sigmoid())
        self.boundary = conv_norm_act(1, WIDTH)
        self.aspp = Aspp(gating[-1], rates_at(OUTPUT_STRIDE), conv_norm_act, further=WIDTH, merge=pointwise)
        self.decoder = Decoder(WIDTH, fine, classes, conv_norm_act, narrow=pointwise)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        size = images.shape[2:]
        stem, fine, *gating = self.regular(images)
        edges = self.shape(stem, gating, size)
        gradients = slope(images.mean(1, keepdim=True))
        drawn = self.with_gradients(torch.cat([edges.sigmoid(), gradients], dim=1))
        fused = self.aspp(gating[-1], self.boundary(resized(drawn, gating[-1].shape[2:])))
        return resized(self.decoder(fused, fine), size), edges
