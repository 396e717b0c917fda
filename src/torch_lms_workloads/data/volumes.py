"""Volumes whose voxels have classes. MONAI turns, respaces and normalizes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.predictions import Affine, NiftiGrid
from torch_lms_workloads.data.source import Source, Whole
from torch_lms_workloads.data.volume_files import Scan, read_classes, read_scan

SCALES = (0.7, 1.4)
SCALED = 0.2
FOREGROUND = 1 / 3
"""In training: least and most scale, how often another than 1, how often a class other than 0 is in the middle.
arXiv 1904.08128, supplementary note 4."""

PERCENTILES = (0.5, 99.5)
"""To which CT is clipped (the same, section 2)."""


@dataclass(frozen=True)
class Pair:
    """The files of an image and of its labels, and a name. Without labels, only a prediction can be made."""

    image: Path
    labels: Path | None
    name: str


@dataclass(frozen=True)
class Preparation:
    """What is done to a volume before a network sees it. It is turned so that axes go right, forward and up.

    Attributes:
        spacing: millimetres between voxels along each axis, after turning; None keeps the file's own.
        modality: ``"CT"``: values mean the same in all volumes, and are clipped before they are normalized. With
            anything else, voxels that are 0 are outside.
    """

    spacing: tuple[float, float, float] | None
    modality: str

    def image(self, scan: Scan) -> tuple[Tensor, Affine]:
        """(channels, *sides), float32, with mean 0 and deviation 1 in each channel; and where the voxels lie."""
        from monai.transforms import ClipIntensityPercentiles, NormalizeIntensity  # takes seconds

        placed = self._placed(scan.values, scan.affine, "bilinear")
        affine = np.asarray(placed.affine, dtype=np.float64)
        if self.modality.upper() == "CT":
            placed = ClipIntensityPercentiles(*PERCENTILES, channel_wise=True)(placed)
        placed = NormalizeIntensity(nonzero=self.modality.upper() != "CT", channel_wise=True)(placed)
        image: Tensor = placed.as_tensor().float().contiguous()
        return image, affine

    def classes(self, labels: NDArray[np.uint8], affine: Affine) -> Tensor:
        """(*sides), uint8."""
        placed = self._placed(labels[np.newaxis].astype(np.float32), affine, "nearest")
        turned: Tensor = placed.as_tensor()[0].round().to(torch.uint8).contiguous()
        return turned

    def _placed(self, values: NDArray[np.float32], affine: Affine, mode: str) -> Any:
        from monai.data import MetaTensor
        from monai.transforms import Orientation, Spacing

        placed = MetaTensor(torch.from_numpy(values), affine=torch.from_numpy(affine))
        placed = Orientation("RAS", labels=(("L", "R"), ("P", "A"), ("I", "S")))(placed)
        return placed if self.spacing is None else Spacing(self.spacing, mode=mode)(placed)


class Volumes(Source):
    """Volumes in NIfTI files."""

    def __init__(self, about: About, pairs: Sequence[Pair], preparation: Preparation) -> None:
        self.about = about
        self.pairs = pairs
        self.preparation = preparation

    def __len__(self) -> int:
        return len(self.pairs)

    def crop(self, index: int, size: int, draw: Generator | None) -> tuple[Tensor, Tensor]:
        whole = self.whole(index)
        assert whole.target is not None
        return volume_crop(whole.image, whole.target, size, draw)

    def whole(self, index: int) -> Whole:
        pair = self.pairs[index]
        scan = read_scan(pair.image)
        if len(scan.values) != self.about.channels:
            raise UsageError(
                f"{pair.image} has {len(scan.values)} channels, {self.about.channels} are expected as in the others: "
                "remove it, or give it as many"
            )
        labels = None if pair.labels is None else read_classes(pair.labels, scan, self.about.classes)
        image, affine = self.preparation.image(scan)
        target = None if labels is None else self.preparation.classes(labels, scan.affine).long()
        form = NiftiGrid(scan.values.shape[1:], scan.affine, tuple(image.shape[1:]), affine)
        return Whole(image, target, pair.name, form)


def volume_crop(image: Tensor, classes: Tensor, size: int, draw: Generator | None) -> tuple[Tensor, Tensor]:
    """As ``Source.crop``, of an image (channels, *sides) and classes (*sides)."""
    sides = classes.shape
    side = _side(min(sides), size, draw)
    starts = _starts(classes, side, draw)
    box = tuple(slice(start, start + side) for start in starts)
    cut, labels = image[(slice(None), *box)], classes[box]
    if side != size:
        cut = F.interpolate(cut.unsqueeze(0), (size,) * 3, mode="trilinear").squeeze(0)
        nearest = ((torch.arange(size) + 0.5) * (side / size)).long()
        labels = labels[nearest][:, nearest][:, :, nearest]
    flipped = [] if draw is None else [axis for axis in (-3, -2, -1) if draw.random() < 0.5]
    return cut.flip(flipped).contiguous(), labels.flip(flipped).contiguous()


def _side(shortest: int, size: int, draw: Generator | None) -> int:
    """Voxels of the volume that ``size`` voxels show along each side."""
    scaled = draw is not None and draw.random() < SCALED
    scale = draw.uniform(*SCALES) if draw is not None and scaled else 1.0
    return min(max(1, round(size / scale)), shortest)


def _starts(classes: Tensor, side: int, draw: Generator | None) -> list[int]:
    room = [length - side for length in classes.shape]
    if draw is None:
        return [free // 2 for free in room]
    there = np.flatnonzero(classes.numpy()) if draw.random() < FOREGROUND else np.empty(0)
    if not there.size:
        return [int(draw.integers(free + 1)) for free in room]
    middle = np.unravel_index(draw.choice(there), tuple(classes.shape))
    return [min(max(int(at) - side // 2, 0), free) for at, free in zip(middle, room, strict=True)]
