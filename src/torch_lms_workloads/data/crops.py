"""Which part of a picture is trained with, and how it is scaled and flipped.

A part is cut out and scaled in one step, so a picture is never blown up as a whole. Labels are never mixed: theirs is
that of the nearest pixel.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from PIL import Image

SCALES = (0.5, 2.0)
"""Least and most in training for segmentation: arXiv 1706.05587, section 4, and the authors' script."""

AREAS = (0.08, 1.0)
ASPECTS = (3 / 4, 4 / 3)
"""Shares of a picture's area, and width by height, in training for classification: arXiv 1409.4842, section 6."""

KEPT = 0.875
"""Of the shorter side, in the middle, otherwise: 224 pixels of 256."""

TRIES = 10


class Part(NamedTuple):
    """A rectangle in pixels of the picture, and whether left and right change places."""

    left: float
    top: float
    right: float
    bottom: float
    flipped: bool = False


def part_of_scene(width: int, height: int, size: int, draw: Generator | None) -> Part:
    """A square that ``size`` by ``size`` pixels show at a random scale, or in the middle as it is.

    The scale is at least that at which the picture is as large as what is asked for.
    """
    least = size / min(width, height)
    if draw is None:
        side = min(size / max(1.0, least), width, height)
        return _square((width - side) // 2, (height - side) // 2, side)
    lowest, highest = (max(scale, least) for scale in SCALES)
    side = min(size / draw.uniform(lowest, highest), width, height)
    left, top = (int(draw.integers(int(length - side) + 1)) for length in (width, height))
    return _square(left, top, side)._replace(flipped=_heads(draw))


def part_of_object(width: int, height: int, draw: Generator | None) -> Part:
    """A rectangle of random area and shape, or the square in the middle."""
    if draw is None:
        side = KEPT * min(width, height)
        return _square((width - side) / 2, (height - side) / 2, side)
    for _ in range(TRIES):
        area = draw.uniform(*AREAS) * width * height
        aspect = np.exp(draw.uniform(*np.log(ASPECTS)))
        across, down = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if 0 < across <= width and 0 < down <= height:
            left, top = int(draw.integers(width - across + 1)), int(draw.integers(height - down + 1))
            return Part(left, top, left + across, top + down, _heads(draw))
    side = min(width, height)
    return _square((width - side) // 2, (height - side) // 2, side)._replace(flipped=_heads(draw))


def shown(picture: Image.Image, part: Part, size: int, *, labels: bool = False) -> Image.Image:
    """``part`` of the picture, ``size`` by ``size``."""
    kernel = Image.Resampling.NEAREST if labels else Image.Resampling.BILINEAR
    cut = picture.resize((size, size), kernel, box=part[:4])
    return cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if part.flipped else cut


def _square(left: float, top: float, side: float) -> Part:
    return Part(left, top, left + side, top + side)


def _heads(draw: Generator) -> bool:
    return bool(draw.random() < 0.5)
