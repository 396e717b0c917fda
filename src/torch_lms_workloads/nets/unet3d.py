"""A 3D U-Net: MONAI's DynUNet, set as nnU-Net sets its own (arXiv 1904.08128)."""

from monai.networks.nets import DynUNet
from torch import nn

from torch_lms.errors import UsageError

FEWEST_LEVELS = 3
MOST_CHANNELS = 320


def unet3d(classes: int, levels: int, channels: int, deep_supervision: bool) -> nn.Module:
    """Volumes (batch, 1, *sides) to logits (batch, classes, *sides). Sides: multiples of ``multiple_of(levels)``.

    Args:
        classes: channels of the result.
        levels: resolutions, each half of the one before.
        channels: feature maps at the first level; they double from one to the next, up to 320.
        deep_supervision: in training, also classify at all resolutions but the first and the two last. All the logits
            are then (batch, heads, classes, *sides).

    Raises:
        UsageError: too few levels.
    """
    if levels < FEWEST_LEVELS:
        raise UsageError(f"levels must be at least {FEWEST_LEVELS}; got {levels!r}")
    halving = [2] * (levels - 1)
    network: nn.Module = DynUNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=classes,
        kernel_size=[3] * levels,
        strides=[1, *halving],
        upsample_kernel_size=halving,
        filters=[min(channels * 2**level, MOST_CHANNELS) for level in range(levels)],
        deep_supervision=deep_supervision,
        deep_supr_num=max(1, levels - 3),
    )
    return network


def multiple_of(levels: int) -> int:
    """What each side must be a multiple of."""
    return 1 << levels - 1
