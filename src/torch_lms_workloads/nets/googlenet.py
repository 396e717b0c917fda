"""GoogLeNet (arXiv 1409.4842) with batch normalization and both auxiliary classifiers, as torchvision has it."""

from torch import nn
from torchvision.models import GoogLeNet


def googlenet(classes: int) -> nn.Module:
    """Images (batch, 3, height, width) to logits (batch, classes); in training to three, the auxiliary ones last.

    Weights begin as torchvision's, but for its cut at 200 standard deviations: finding them reads values, which fake
    tensors do not have.
    """
    network: nn.Module = GoogLeNet(num_classes=classes, aux_logits=True, init_weights=False)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
    return network
