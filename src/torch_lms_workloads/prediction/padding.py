"""Images with sides that a network can take."""

from torch import Tensor
from torch.nn import functional as F

from torch_lms_workloads.workload import Bounds


def padded(image: Tensor, bounds: Bounds) -> Tensor:
    """Sides are made longer at their ends, by repeating the last pixel, up to a multiple that is large enough.

    Args:
        image: (channels, *sides).
        bounds: what the network can take.
    """
    ends = [max(bounds.size, -(-side // bounds.multiple) * bounds.multiple) for side in image.shape[1:]]
    added = [end - side for end, side in zip(ends, image.shape[1:], strict=True)]
    if not any(added):
        return image
    pads = [pad for more in reversed(added) for pad in (0, more)]
    return F.pad(image.unsqueeze(0), pads, mode="replicate").squeeze(0)


def cropped(maps: Tensor, sides: tuple[int, ...]) -> Tensor:
    """``maps`` (*padded sides) without what ``padded`` added."""
    return maps[tuple(slice(side) for side in sides)]
