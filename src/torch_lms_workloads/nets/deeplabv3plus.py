"""DeepLabv3+ (arXiv 1802.02611): pyramid pooling and decoder over a backbone of timm."""

import timm
from timm.layers import freeze_batch_norm_2d
from torch import Tensor, nn

from torch_lms.errors import UsageError
from torch_lms_workloads.nets.aspp import WIDTH, Aspp, rates_at
from torch_lms_workloads.nets.decoder import Decoder
from torch_lms_workloads.nets.layers import resized, separable

DILATED = (8, 16)
STRIDES = {
    "xception65": DILATED,
    "mobilenetv2_100": DILATED,
    "resnet50": DILATED,
    "resnet101": DILATED,
    "pnasnet5large": (32,),  # timm's cannot be dilated
}
"""The backbones, and the output strides that each can have."""


class DeepLabV3Plus(nn.Module):
    """Images (batch, 3, height, width) to logits (batch, classes, height, width). Any size, odd ones too.

    Args:
        backbone: a key of ``STRIDES``.
        output_stride: pixels of the image per pixel of the backbone's last map, along a side.
        classes: channels of the result.
        freeze_batch_norm: take statistics, scales and shifts as they are, and train none of them.

    Raises:
        UsageError: no such backbone, or not at this stride.
    """

    def __init__(self, backbone: str, output_stride: int, classes: int, freeze_batch_norm: bool = False) -> None:
        super().__init__()
        _check(backbone, output_stride)
        self.backbone = timm.create_model(backbone, features_only=True, output_stride=output_stride)
        stages = self.backbone.feature_info
        self.fine = stages.reduction().index(4)
        self.aspp = Aspp(stages.channels()[-1], rates_at(output_stride), separable)
        self.decoder = Decoder(WIDTH, stages.channels()[self.fine], classes, separable)
        if freeze_batch_norm:
            freeze_batch_norm_2d(self)

    def forward(self, images: Tensor) -> Tensor:
        stages = self.backbone(images)
        logits = self.decoder(self.aspp(stages[-1]), stages[self.fine])
        return resized(logits, images.shape[2:])


def _check(backbone: str, output_stride: int) -> None:
    if backbone not in STRIDES:
        raise UsageError(f"backbone must be one of {', '.join(STRIDES)}; got {backbone!r}")
    if output_stride not in STRIDES[backbone]:
        allowed = " or ".join(map(str, STRIDES[backbone]))
        raise UsageError(f"output_stride of {backbone} must be {allowed}; got {output_stride!r}")
