"""Networks to measure with, in plain PyTorch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    padding = dilation * (size // 2)
    return [nn.Conv2d(inputs, outputs, size, stride, padding, dilation, bias=False), nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """Convolutions around a shortcut: two of 3x3, or of 1x1, 3x3 and 1x1 (``bottleneck``)."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool, dilation: int = 1) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        body: list[nn.Module] = []
        if bottleneck:
            body += [*_convolution(inputs, width, 1), nn.ReLU(inplace=True)]
            body += [*_convolution(width, width, 3, stride, dilation), nn.ReLU(inplace=True)]
            body += _convolution(width, outputs, 1)
        else:
            body += [*_convolution(inputs, width, 3, stride, dilation), nn.ReLU(inplace=True)]
            body += _convolution(width, width, 3, dilation=dilation)
        self.body = nn.Sequential(*body)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet_stages(layers: int, output_stride: int = 32) -> list[nn.Sequential]:
    """The stem and the four stages of He et al. 2015, table 1, of 18 or 50 ``layers``.

    Strides beyond ``output_stride`` become dilations.
    """
    bottleneck = layers == 50
    stages = [nn.Sequential(*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))]
    inputs, reached, dilation = 64, 4, 1
    for number, count in enumerate({18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[layers]):
        width, stride = 64 << number, 1 if number == 0 else 2
        if reached * stride > output_stride:
            stride, dilation = 1, dilation * stride
        reached *= stride
        blocks = []
        for block in range(count):
            blocks.append(Residual(inputs, width, stride if block == 0 else 1, bottleneck, dilation))
            inputs = width * 4 if bottleneck else width
        stages.append(nn.Sequential(*blocks))
    return stages


def resnet(layers: int, classes: int = 15) -> nn.Module:
    """ResNet of 18 or 50 ``layers``, for classification."""
    channels = 2048 if layers == 50 else 512
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*resnet_stages(layers), *head)


class DeepLab(nn.Module):
    """Atrous spatial pyramid pooling and a decoder over a ResNet of stride 16 (after Chen et al. 2018)."""

    def __init__(self, layers: int = 18, classes: int = 21, width: int = 128) -> None:
        super().__init__()
        self.stages = nn.ModuleList(resnet_stages(layers, output_stride=16))
        low, high = (256, 2048) if layers == 50 else (64, 512)
        self.pyramid = nn.ModuleList(
            [nn.Sequential(*_convolution(high, width, 1), nn.ReLU())]
            + [nn.Sequential(*_convolution(high, width, 3, dilation=rate), nn.ReLU()) for rate in (6, 12, 18)]
        )
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(high, width, 1), nn.ReLU())
        self.project = nn.Sequential(*_convolution(5 * width, width, 1), nn.ReLU(), nn.Dropout(0.1))
        self.low = nn.Sequential(*_convolution(low, 48, 1), nn.ReLU())
        self.head = nn.Sequential(*_convolution(width + 48, width, 3), nn.ReLU(), nn.Conv2d(width, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        low = x = self.stages[1](self.stages[0](x))
        for stage in list(self.stages)[2:]:
            x = stage(x)
        whole = self.whole(x).expand(-1, -1, *x.shape[-2:])
        x = self.project(torch.cat([*(branch(x) for branch in self.pyramid), whole], 1))
        x = F.interpolate(x, low.shape[-2:], mode="bilinear", align_corners=False)
        return F.interpolate(self.head(torch.cat([x, self.low(low)], 1)), size, mode="bilinear", align_corners=False)


def encoder(layers: int = 2, width: int = 512) -> nn.Module:
    """A transformer encoder with pre-norm layers."""
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class UNet3d(nn.Module):
    """Three levels, two convolutions each, skips by concatenation."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        wider, widest = 2 * width, 4 * width
        self.down = nn.ModuleList([self._block(1, width), self._block(width, wider), self._block(wider, widest)])
        self.up = nn.ModuleList([self._block(widest + wider, wider), self._block(wider + width, width)])
        self.head = nn.Conv3d(width, 3, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        ends = [(inputs, outputs), (outputs, outputs)]
        return nn.Sequential(
            *(m for a, b in ends for m in (nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b), nn.LeakyReLU(0.01)))
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool3d(first, 2))
        x = self.down[2](F.max_pool3d(second, 2))
        x = self.up[0](torch.cat([F.interpolate(x, scale_factor=2), second], 1))
        x = self.up[1](torch.cat([F.interpolate(x, scale_factor=2), first], 1))
        result: Tensor = self.head(x)
        return result


class DecoderBlock(nn.Module):
    """Causal attention, then two linear layers, each after a norm and around a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.heads = heads
        self.attention = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attention(self.norms[0](x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(found.transpose(1, 2).flatten(2))
        return x + self.mix(self.norms[1](x))


class Decoder(nn.Module):
    """After GPT-2, from tokens to the logits of the next ones."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257, most: int = 1024
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(most, width)
        self.blocks = nn.ModuleList([DecoderBlock(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result
