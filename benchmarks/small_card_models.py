"""What ``small_card.py`` trains."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from nets import Decoder, DecoderBlock, DeepLab, Residual, UNet3d, resnet
from torch import Tensor, nn
from torch.nn import functional as F


def _square(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs.float().square().mean()


def _next_word(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


_sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
_adamw = partial(torch.optim.AdamW, fused=True)


@dataclass(frozen=True)
class Model:
    """A network, and inputs of any amount.

    Attributes:
        amount: what is counted: samples, or the side of a volume.
        first: an amount that is small.
        power: what the amount is raised to, to be proportional to the memory.
        step: amounts are multiples of it.
        blocks: the modules that checkpointing runs again.
        is_deterministic: whether a GPU has deterministic algorithms for all that it does.
    """

    name: str
    title: str
    amount: str
    first: int
    make: Callable[[], nn.Module]
    inputs: Callable[[int, torch.device], Tensor]
    blocks: type[nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor] = _square
    optimizer: Callable[..., torch.optim.Optimizer] = _sgd
    power: int = 1
    step: int = 1
    is_deterministic: bool = False

    def units(self, amount: int) -> float:
        """What the memory is proportional to."""
        return float(amount**self.power)

    def amount_of(self, units: float) -> int:
        """The largest amount of at most so many ``units``."""
        return max(1, int(max(0.0, units) ** (1 / self.power) + 1e-6) // self.step) * self.step


def _pictures(side: int, amount: int, device: torch.device) -> Tensor:
    return torch.randn(amount, 3, side, side, device=device)


def _volume(amount: int, device: torch.device) -> Tensor:
    return torch.randn(1, 1, amount, amount, amount, device=device)


def _tokens(words: int, length: int, amount: int, device: torch.device) -> Tensor:
    return torch.randint(words, (amount, length), device=device)


def _resnet50(side: int, first: int) -> Model:
    title = f"ResNet-50, {side}^2"
    make, inputs = partial(resnet, 50), partial(_pictures, side)
    return Model("resnet50", title, "batch", first, make, inputs, Residual, is_deterministic=True)


def _unet3d(width: int, first: int, step: int) -> Model:
    make = partial(UNet3d, width)
    title = f"3D U-Net, width {width}"
    return Model("unet3d", title, "side", first, make, _volume, nn.Sequential, power=3, step=step)


def _deeplab(layers: int, side: int, first: int) -> Model:
    title = f"DeepLabv3+ on ResNet-{layers}, {side}^2"
    make = partial(DeepLab, layers)
    return Model("deeplabv3plus", title, "batch", first, make, partial(_pictures, side), Residual)


def _gpt(layers: int, width: int, words: int, length: int, first: int) -> Model:
    title = f"decoder, {layers} layers of {width}, {length} tokens"
    make = partial(Decoder, layers, width, width // 64, words, length)
    inputs = partial(_tokens, words, length)
    return Model("gpt", title, "batch", first, make, inputs, DecoderBlock, _next_word, _adamw, is_deterministic=True)


MODELS = {
    model.name: model
    for model in (_resnet50(224, 16), _unet3d(32, 64, 8), _deeplab(50, 513, 2), _gpt(12, 768, 50257, 1024, 1))
}


def _residuals() -> nn.Module:
    return nn.Sequential(Residual(3, 8, 1, False), Residual(8, 8, 1, False), Residual(8, 16, 2, False))


def _tiny(name: str) -> Model:
    return Model(name, f"tiny, for {name}", "batch", 2, _residuals, partial(_pictures, 32), Residual)


TINY = {
    model.name: model
    for model in (_tiny("resnet50"), _unet3d(8, 16, 4), _tiny("deeplabv3plus"), _gpt(2, 128, 1000, 128, 2))
}
"""Of the same names, to see that it runs."""
