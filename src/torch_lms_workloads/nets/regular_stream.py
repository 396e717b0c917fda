"""The trunks that Gated-SCNN can have, all at output stride 8, and where its other parts take their maps from."""

from typing import Generic, NamedTuple, TypeVar

import timm
from torch import Tensor, nn

from torch_lms.errors import UsageError
from torch_lms_workloads.nets.wide_resnet38 import CHANNELS, WideResNet38

OUTPUT_STRIDE = 8
WIDE = "wide_resnet38"
RESNETS = ("resnet50", "resnet101")

T = TypeVar("T")


class Taps(NamedTuple, Generic[T]):
    """One thing for each map that is taken.

    Attributes:
        stem: after the first convolution: where the shape stream begins.
        fine: what the decoder sharpens by.
        third, fourth, last: what the three gates look at.
    """

    stem: T
    fine: T
    third: T
    fourth: T
    last: T


class WideStream(nn.Module):
    """ResNet-38: maps of its modules 1, 2, 3, 4 and 7."""

    channels = Taps(CHANNELS[0], CHANNELS[1], CHANNELS[2], CHANNELS[3], CHANNELS[6])

    def __init__(self) -> None:
        super().__init__()
        self.trunk = WideResNet38()

    def forward(self, images: Tensor) -> Taps[Tensor]:
        first, second, third, fourth, _, _, last = self.trunk(images)
        return Taps(first, second, third, fourth, last)


class ResNetStream(nn.Module):
    """A dilated ResNet of timm: its stem and its stages 1, 2 and 4."""

    def __init__(self, backbone: str) -> None:
        super().__init__()
        self.trunk = timm.create_model(backbone, features_only=True, output_stride=OUTPUT_STRIDE)
        stem, first, second, _, last = self.trunk.feature_info.channels()
        self.channels = Taps(stem, first, first, second, last)

    def forward(self, images: Tensor) -> Taps[Tensor]:
        stem, first, second, _, last = self.trunk(images)
        return Taps(stem, first, first, second, last)


def regular_stream(backbone: str) -> WideStream | ResNetStream:
    """The trunk of this name.

    Raises:
        UsageError: there is none.
    """
    if backbone == WIDE:
        return WideStream()
    if backbone in RESNETS:
        return ResNetStream(backbone)
    raise UsageError(f"backbone must be one of {', '.join((WIDE, *RESNETS))}; got {backbone!r}")
