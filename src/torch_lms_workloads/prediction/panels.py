"""Input, truth and prediction, side by side, for people."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.pictures import MEAN, STD

GAP = 8
"""Pixels between two panels."""

LINE = 14
"""Pixels of a line of text."""

Pixels = NDArray[np.uint8]


def side_by_side(image: Tensor, truth: Tensor, found: Tensor, about: About, path: Path) -> None:
    """A PNG. Of a volume, the slice from below upwards in which most is labelled.

    Args:
        image: (channels, *sides), as the network had it.
        truth, found: classes (*sides), or one of the image ().
        about: names and colours of the classes.
        path: the file; its folder is made.
    """
    if not truth.ndim:
        shown = _named(_picture(image), f"is {about.names[int(truth)]}, found {about.names[int(found)]}")
    elif truth.ndim == 3:
        level = int((truth > 0).sum((0, 1)).argmax())
        shown = _row(
            [_scan(image[0, :, :, level]), *(_upright(_colours(m[:, :, level], about)) for m in (truth, found))]
        )
    else:
        shown = _row([_picture(image), *(_colours(classes, about) for classes in (truth, found))])
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(shown).save(path)


def _picture(image: Tensor) -> Pixels:
    """What ``normalized`` was given."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    pixels = ((image * std + mean) * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    return np.ascontiguousarray(pixels.numpy())


def _scan(layer: Tensor) -> Pixels:
    """Grey, the darkest hundredth black and the brightest white."""
    values = layer.numpy()
    low, high = np.percentile(values, (1, 99))
    grey = np.clip((values - low) / max(high - low, 1e-6) * 255, 0, 255).astype(np.uint8)
    return _upright(np.repeat(grey[..., np.newaxis], 3, axis=2))


def _upright(layer: Pixels) -> Pixels:
    """Axes go right and forward; on paper, down comes first."""
    return np.ascontiguousarray(layer.swapaxes(0, 1)[::-1])


def _colours(classes: Tensor, about: About) -> Pixels:
    palette = np.array(about.palette(), dtype=np.uint8).reshape(-1, 3)
    coloured: Pixels = palette[classes.numpy().astype(np.intp)]
    return coloured


def _row(panels: list[Pixels]) -> Pixels:
    gap = np.full((panels[0].shape[0], GAP, 3), 255, np.uint8)
    return np.concatenate([part for panel in panels for part in (panel, gap)][:-1], axis=1)


def _named(picture: Pixels, text: str) -> Pixels:
    """With a line of text below."""
    height, width, _ = picture.shape
    canvas = Image.new("RGB", (max(width, 7 * len(text)), height + LINE), "white")
    canvas.paste(Image.fromarray(picture))
    ImageDraw.Draw(canvas).text((2, height + 1), text, fill="black")
    return np.asarray(canvas)
