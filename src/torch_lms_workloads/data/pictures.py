"""Reading pictures. Whatever their kind, they become 8-bit RGB, or are refused."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from torch_lms.errors import UsageError

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of ImageNet's pixels, by channel, between 0 and 1: what weights for pictures are usually trained with."""

DEEPER = ("I", "F")
"""How the modes begin that have more than 8 bits a channel."""


def read_picture(path: Path, *, upright: bool = False) -> Image.Image:
    """The picture in RGB. Greyscale, palette and CMYK are converted, transparency is dropped.

    Args:
        path: its file.
        upright: turn it as its camera noted.

    Raises:
        UsageError: missing, truncated, no picture, or of more than 8 bits.
    """
    picture = decoded(path)
    if picture.mode.startswith(DEEPER):
        raise UsageError(f"{path} has 16 bits or more a pixel (mode {picture.mode}): convert it to 8 bits")
    if upright:
        picture = ImageOps.exif_transpose(picture)
    if "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def decoded(path: Path) -> Image.Image:
    """The picture as its file has it.

    Raises:
        UsageError: missing, truncated, or no picture.
    """
    try:
        with Image.open(path) as picture:
            picture.load()
            return picture
    except FileNotFoundError as error:
        raise UsageError(f"{path} is missing: fetch it, or take it off the list") from error
    except Image.DecompressionBombError as error:
        raise UsageError(f"{path}: {error}; if you trust it, set PIL.Image.MAX_IMAGE_PIXELS = None") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{path} cannot be read, it is truncated or no picture ({error}): fetch it again") from error


def normalized(picture: Image.Image) -> Tensor:
    """RGB to (3, height, width), float32, less ``MEAN``, by ``STD``."""
    values = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float()
    mean, std = (torch.tensor(channels).view(3, 1, 1) for channels in (MEAN, STD))
    return values.div_(255).sub_(mean).div_(std).contiguous()
