"""Classification networks of timm."""

import timm
from torch import nn

from torch_lms.errors import UsageError


def classifier(model: str, classes: int) -> nn.Module:
    """timm's network of this name: images (batch, 3, height, width) to logits (batch, classes).

    Raises:
        UsageError: timm has none of this name.
    """
    if not timm.is_model(model):
        raise UsageError(f"model must be the name of a network of timm, such as 'resnet50'; got {model!r}")
    network: nn.Module = timm.create_model(model, num_classes=classes)
    return network
