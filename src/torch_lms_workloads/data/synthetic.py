"""Made-up data of any size and any number of classes. Where the classes are is random: they can be learnt."""

from math import ceil
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About, Task, numbered
from torch_lms_workloads.data.crops import part_of_object, shown
from torch_lms_workloads.data.draws import Purpose, generator
from torch_lms_workloads.data.files import one_of
from torch_lms_workloads.data.format import Format
from torch_lms_workloads.data.pictures import normalized
from torch_lms_workloads.data.predictions import NiftiGrid
from torch_lms_workloads.data.segmentation import scene_crop, whole_scene
from torch_lms_workloads.data.source import Source, Whole
from torch_lms_workloads.data.volumes import volume_crop

PATCHES = 8
"""Along a side; all pixels of one have the same class."""

NOISE = 24
"""Of a pixel's value, up or down, out of 255."""

MOST_CLASSES = {"segmentation": 255, "classification": 1_000_000}
"""A label 255 is one that does not count."""


class Synthetic(Source):
    """So many samples of a size, each from its own seed."""

    def __init__(self, about: About, length: int, size: int, seeds: tuple[int, int]) -> None:
        self.about = about
        self.length = length
        self.size = size
        self.seeds = seeds

    def __len__(self) -> int:
        return self.length


class SyntheticPictures(Synthetic):
    """Pictures of patches, each in the colour of its class and noisy; or of one colour, for classification."""

    def crop(self, index: int, size: int, draw: Generator | None) -> tuple[Tensor, Tensor]:
        picture, classes = self._made(index)
        if self.about.task == "segmentation":
            return scene_crop(picture, classes.astype(np.uint8), size, draw)
        part = part_of_object(*picture.size, draw)
        return normalized(shown(picture, part, size)), torch.tensor(int(classes[0, 0]))

    def whole(self, index: int) -> Whole:
        picture, classes = self._made(index)
        if self.about.task == "segmentation":
            return whole_scene(picture, classes.astype(np.uint8), str(index), self.about)
        return Whole(normalized(picture), torch.tensor(int(classes[0, 0])), str(index), None)

    def _made(self, index: int) -> tuple[Image.Image, NDArray[np.int64]]:
        draw = generator(Purpose.SYNTHETIC, *self.seeds, index)
        patches = PATCHES if self.about.task == "segmentation" else 1
        classes = _patched(draw, patches, (self.size,) * 2, self.about.classes)
        colours = _colours(classes)
        noise = draw.integers(-NOISE, NOISE + 1, colours.shape, dtype=np.int16)
        return Image.fromarray(np.clip(colours + noise, 0, 255).astype(np.uint8)), classes


class SyntheticVolumes(Synthetic):
    """Volumes of patches, the brighter the higher their class."""

    def crop(self, index: int, size: int, draw: Generator | None) -> tuple[Tensor, Tensor]:
        return volume_crop(*self._made(index), size, draw)

    def whole(self, index: int) -> Whole:
        image, classes = self._made(index)
        grid = tuple(classes.shape), np.eye(4)
        return Whole(image, classes, str(index), NiftiGrid(*grid, *grid))

    def _made(self, index: int) -> tuple[Tensor, Tensor]:
        draw = generator(Purpose.SYNTHETIC, *self.seeds, index)
        classes = _patched(draw, PATCHES, (self.size,) * 3, self.about.classes)
        image = classes.astype(np.float32) * (2 / (self.about.classes - 1)) - 1
        image += draw.standard_normal(image.shape, dtype=np.float32) * np.float32(0.5 / self.about.classes)
        return torch.from_numpy(image).unsqueeze(0), torch.from_numpy(classes)


def _patched(draw: Generator, patches: int, sides: tuple[int, ...], classes: int) -> NDArray[np.int64]:
    labels = draw.integers(classes, size=(patches,) * len(sides))
    for axis, side in enumerate(sides):
        labels = labels.repeat(ceil(side / patches), axis=axis).take(range(side), axis=axis)
    return labels


def _colours(classes: NDArray[np.int64]) -> NDArray[np.int16]:
    """A colour for each class, far from those of its neighbours: (..., 3)."""
    scattered = (classes + 1) * 2654435761  # 2**32 by the golden ratio
    return np.stack([scattered >> shift & 255 for shift in (24, 16, 8)], axis=-1).astype(np.int16)


def _source(
    root: Path, split: str, task: Task, dimensions: int, classes: int, length: int, size: int, seed: int
) -> Source:
    one_of("task", task, list(MOST_CLASSES))
    one_of("dimensions", dimensions, (2, 3) if task == "segmentation" else (2,))
    if not 2 <= classes <= MOST_CLASSES[task]:
        raise UsageError(f"classes must be 2 to {MOST_CLASSES[task]} for {task}; got {classes}")
    if min(length, size) < 1:
        raise UsageError(f"length and size must be at least 1; got {length} and {size}")
    channels = 3 if dimensions == 2 else 1
    about = About("synthetic", task, numbered(classes), dimensions=dimensions, channels=channels)
    kind = SyntheticPictures if dimensions == 2 else SyntheticVolumes
    return kind(about, length, size, (seed, crc32(split.encode())))


synthetic = Format(
    kind="synthetic",
    looked_for="the word synthetic in place of a folder",
    fits=lambda root: False,
    source=_source,
    options={"task": "segmentation", "dimensions": 2, "classes": 21, "length": 64, "size": 512, "seed": 0},
)
