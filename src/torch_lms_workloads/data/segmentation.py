"""Pictures whose pixels have classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image
from torch import Tensor

from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.crops import part_of_scene, shown
from torch_lms_workloads.data.masks import Classes, Labels
from torch_lms_workloads.data.pictures import normalized, read_picture
from torch_lms_workloads.data.predictions import PalettePng
from torch_lms_workloads.data.source import Source, Whole


@dataclass(frozen=True)
class Labelled:
    """A picture's file, its labels, and its name."""

    path: Path
    labels: Labels
    name: str


class LabelledPictures(Source):
    """Pictures on disk with labels from anywhere."""

    def __init__(self, about: About, items: Sequence[Labelled], *, upright: bool = False) -> None:
        self.about = about
        self.items = items
        self.upright = upright

    def __len__(self) -> int:
        return len(self.items)

    def crop(self, index: int, size: int, draw: Generator | None) -> tuple[Tensor, Tensor]:
        return scene_crop(*self._read(index), size, draw)

    def whole(self, index: int) -> Whole:
        picture, classes = self._read(index)
        return whole_scene(picture, classes, self.items[index].name, self.about)

    def _read(self, index: int) -> tuple[Image.Image, Classes]:
        item = self.items[index]
        picture = read_picture(item.path, upright=self.upright)
        return picture, item.labels.drawn(*picture.size)


def scene_crop(picture: Image.Image, classes: Classes, size: int, draw: Generator | None) -> tuple[Tensor, Tensor]:
    """As ``Source.crop``."""
    part = part_of_scene(*picture.size, size, draw)
    cut = shown(Image.fromarray(classes), part, size, labels=True)
    return normalized(shown(picture, part, size)), as_target(np.asarray(cut))


def whole_scene(picture: Image.Image, classes: Classes | None, name: str, about: About) -> Whole:
    """As ``Source.whole``."""
    form = PalettePng(picture.height, picture.width, about.palette())
    return Whole(normalized(picture), None if classes is None else as_target(classes), name, form)


def as_target(classes: Classes) -> Tensor:
    return torch.from_numpy(classes.astype(np.int64))
