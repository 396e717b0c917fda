"""The trunk of ResNet-38, wide and shallow (arXiv 1611.10080, table 1, model A), at output stride 8.

The first two halvings are poolings, the third a stride; the two after that are dilations instead.
"""

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

STEM = 64


@dataclass(frozen=True)
class Module:
    """Residual units of one width.

    Attributes:
        widths: channels after each convolution of a unit.
        units: how many.
        pool: halve the size before.
        stride: of the first unit.
        dilation: of all 3x3 convolutions.
        dropout: of whole channels, before the last convolution of a unit (as Gated-SCNN's authors have it).
    """

    widths: tuple[int, ...]
    units: int
    pool: bool = False
    stride: int = 1
    dilation: int = 1
    dropout: float = 0.0


MODULES = (
    Module((128, 128), units=3, pool=True),
    Module((256, 256), units=3, pool=True),
    Module((512, 512), units=6, stride=2),
    Module((512, 1024), units=3, dilation=2),
    Module((512, 1024, 2048), units=1, dilation=4, dropout=0.3),
    Module((1024, 2048, 4096), units=1, dilation=4, dropout=0.5),
)
"""The second module to the seventh; the first is one convolution."""

KERNELS = {2: (3, 3), 3: (1, 3, 1)}
"""Of a unit's convolutions, by their number."""

CHANNELS = (STEM, *(module.widths[-1] for module in MODULES))


class WideResNet38(nn.Module):
    """Images (batch, 3, height, width) to the maps after each of the seven modules; their channels are ``CHANNELS``."""

    def __init__(self) -> None:
        super().__init__()
        before = CHANNELS[:-1]
        self.stem = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        self.stages = nn.ModuleList(_stage(width, module) for width, module in zip(before, MODULES, strict=True))

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = [self.stem(images)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps


class _Unit(nn.Module):
    """A residual unit that normalizes first (arXiv 1603.05027)."""

    def __init__(self, before: int, module: Module, stride: int) -> None:
        super().__init__()
        after = module.widths[-1]
        self.enter = _norm_act(before)
        self.body = _body(before, module, stride)
        self.project = (
            None if (before, stride) == (after, 1) else nn.Conv2d(before, after, 1, stride=stride, bias=False)
        )

    def forward(self, maps: Tensor) -> Tensor:
        entered = self.enter(maps)
        kept = maps if self.project is None else self.project(entered)
        changed: Tensor = self.body(entered)
        return kept + changed


def _stage(before: int, module: Module) -> nn.Sequential:
    units = [_Unit(before, module, module.stride)]
    units += [_Unit(module.widths[-1], module, 1) for _ in range(module.units - 1)]
    pool = [nn.MaxPool2d(3, stride=2, padding=1)] if module.pool else []
    return nn.Sequential(*pool, *units)


def _body(before: int, module: Module, stride: int) -> nn.Sequential:
    kernels = KERNELS[len(module.widths)]
    strides = (stride, *(1 for _ in kernels[1:]))
    widths = pairwise((before, *module.widths))
    first, *others = (_conv(*each, module.dilation) for each in zip(widths, kernels, strides, strict=True))
    layers: list[nn.Module] = [first]
    for conv in others:
        layers += [_norm_act(conv.in_channels), conv]
    if module.dropout:
        layers.insert(-1, nn.Dropout2d(module.dropout))
    return nn.Sequential(*layers)


def _conv(widths: tuple[int, int], kernel: int, stride: int, dilation: int) -> nn.Conv2d:
    dilation = dilation if kernel > 1 else 1
    padding = dilation * (kernel // 2)
    return nn.Conv2d(*widths, kernel, stride=stride, padding=padding, dilation=dilation, bias=False)


def _norm_act(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
