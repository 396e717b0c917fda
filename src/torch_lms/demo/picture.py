"""The demo's picture: one slice through the brain, as scanned, as it is, and as the network sees it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Slice: TypeAlias = np.ndarray[tuple[int, int], np.dtype[Any]]
Color: TypeAlias = tuple[int, int, int]

_BACKGROUND: Color = (16, 18, 22)
_TEXT: Color = (236, 238, 240)
_FAINT: Color = (150, 156, 164)
_TISSUES: dict[str, tuple[int, Color]] = {"grey": (1, (255, 150, 60)), "white": (2, (70, 170, 255))}
_PANELS = ("T1 scan", "truth", "prediction with LMS")
_OPACITY = 0.62
"""How much of the scan a colour covers: edges of the tissues can still be seen below it."""

_PANEL_HEIGHT = 480
_GAP = 24
_HEAD = 104
_FOOT = 64
_MARGIN = 3
"""Voxels left around the brain."""

_FAINTEST = 0.1
"""The share of the brightest voxel below which a voxel is no brain, but the haze that resampling leaves around it."""


@dataclass(frozen=True, slots=True)
class Captions:
    """What is written above the panels; the Dice of each tissue is written below."""

    title: str
    subtitle: str
    dice: dict[str, float]


def write_picture(path: Path, volume: Path, prediction: Path, captions: Captions) -> None:
    """Draw the slice of ``volume`` (as ``write_volume`` wrote it) with the most labels; ``prediction`` is .npy.

    Raises:
        OSError: the file cannot be written.
    """
    with np.load(volume) as arrays:
        scan = arrays["scan"]
        truth = arrays["labels"]
    predicted = np.load(prediction)[tuple(map(slice, scan.shape))]  # without the padding
    height = int(np.argmax(np.count_nonzero(truth, axis=(0, 1))))
    brain = scan[:, :, height] > _FAINTEST * scan.max()
    grey = _upright(scan[:, :, height], brain)
    scale = max(1, round(_PANEL_HEIGHT / grey.shape[0]))
    panels = [
        _enlarged(grey, scale),
        _colored(grey, _upright(truth[:, :, height], brain), scale),
        _colored(grey, _upright(predicted[:, :, height], brain), scale),
    ]
    _on_one_sheet(panels, captions).save(path)


def _upright(array: Slice, brain: Slice) -> Slice:
    """The part of ``array`` around the brain, the front of the head at the top."""
    rows = _around(np.flatnonzero(brain.any(axis=1)))
    columns = _around(np.flatnonzero(brain.any(axis=0)))
    return np.rot90(array[rows, columns])


def _around(positions: np.ndarray[tuple[int], np.dtype[Any]]) -> slice:
    return slice(max(0, positions[0] - _MARGIN), positions[-1] + 1 + _MARGIN)


def _enlarged(grey: Slice, scale: int) -> Image.Image:
    shades = np.clip(grey / grey.max() * 255, 0, 255).astype(np.uint8)
    size = (grey.shape[1] * scale, grey.shape[0] * scale)
    return Image.fromarray(shades).resize(size, Image.Resampling.BICUBIC).convert("RGB")


def _colored(grey: Slice, labels: Slice, scale: int) -> Image.Image:
    panel = _enlarged(grey, scale)
    for label, color in _TISSUES.values():
        share = Image.fromarray((labels == label).astype(np.uint8) * 255)
        smooth = share.resize(panel.size, Image.Resampling.BICUBIC)  # edges without stairs
        mask = smooth.point([0 if value < 128 else round(255 * _OPACITY) for value in range(256)])
        panel.paste(color, mask=mask)
    return panel


def _on_one_sheet(panels: list[Image.Image], captions: Captions) -> Image.Image:
    width, height = panels[0].size
    sheet = Image.new("RGB", (len(panels) * (width + _GAP) + _GAP, _HEAD + height + _FOOT), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    large = ImageFont.load_default(24)
    small = ImageFont.load_default(17)
    draw.text((_GAP, 18), captions.title, _TEXT, large)
    draw.text((_GAP, 50), captions.subtitle, _FAINT, small)
    for index, (panel, caption) in enumerate(zip(panels, _PANELS, strict=True)):
        left = _GAP + index * (width + _GAP)
        draw.text((left, _HEAD - 24), caption, _TEXT, small)
        sheet.paste(panel, (left, _HEAD))
    left = _GAP
    top = _HEAD + height + 24
    for tissue, (_, color) in _TISSUES.items():
        draw.rectangle((left, top, left + 16, top + 16), fill=color)
        draw.text((left + 26, top - 2), f"{tissue} matter, Dice {captions.dice[tissue]:.2f}", _FAINT, small)
        left += 280
    return sheet
