"""A model of your own for `torch-lms plan`:

    torch-lms plan examples/own_model.py:segmenter --size 2048 --batch 4 --machine rtx4090-24gb

The function is called with what you ask for (--size, --batch, --set NAME=VALUE) and returns the model, the tensors that
it is called with (a tuple, or a dict for keywords), and a function that makes the loss of what it returns. It runs on
tensors without bytes: nothing is allocated, whatever the size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def segmenter(size: int = 512, batch: int = 2, width: int = 32, depth: int = 6, classes: int = 8):
    """A small network that gives every pixel a class."""

    def block(channels: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))

    blocks = [block(3), *(block(width) for _ in range(depth - 1))]
    model = nn.Sequential(*blocks, nn.Conv2d(width, classes, 1))
    images = torch.randn(batch, 3, size, size)
    labels = torch.randint(classes, (batch, size, size))

    def loss(outputs: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels)

    return model, (images,), loss
