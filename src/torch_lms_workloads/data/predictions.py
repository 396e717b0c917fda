"""How a prediction is written: in the form, the size and the place of the file that it was made from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from torch_lms.errors import UsageError

Affine = NDArray[np.float64]
"""4x4: from the index of a voxel to millimetres."""


class Prediction(ABC):
    """Where the classes that a network found belong."""

    @abstractmethod
    def write(self, classes: Tensor, stem: Path) -> Path:
        """Write them, and return the file.

        Args:
            classes: one for each pixel or voxel of ``Whole.image``, any integer type.
            stem: the file to be, without its ending; folders are made.

        Raises:
            UsageError: of another shape than the image.
        """


@dataclass(frozen=True)
class PalettePng(Prediction):
    """A PNG whose pixels are classes, seen in the data set's colours."""

    height: int
    width: int
    palette: list[int]

    def write(self, classes: Tensor, stem: Path) -> Path:
        _check(classes, (self.height, self.width), stem)
        picture = Image.fromarray(_bytes(classes))
        picture.putpalette(self.palette)
        path = _beside(stem, ".png")
        picture.save(path)
        return path


@dataclass(frozen=True)
class NiftiGrid(Prediction):
    """A NIfTI file with the voxels of the file that the image came from.

    Attributes:
        shape, affine: of that file.
        seen_shape, seen_affine: of the image, turned and respaced for the network.
    """

    shape: tuple[int, ...]
    affine: Affine
    seen_shape: tuple[int, ...]
    seen_affine: Affine

    def write(self, classes: Tensor, stem: Path) -> Path:
        _check(classes, self.seen_shape, stem)
        written = nibabel.Nifti1Image(self.restored(_bytes(classes)), self.affine)
        written.header.set_xyzt_units("mm")
        path = _beside(stem, ".nii.gz")
        nibabel.save(written, path)
        return path

    def restored(self, classes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The class at each voxel of the file: that of the nearest voxel seen.

        Turning and respacing keep axes apart, so each axis of the file is looked up by itself.
        """
        across = np.linalg.inv(self.seen_affine) @ self.affine
        axes = [int(np.argmax(abs(across[:3, axis]))) for axis in range(3)]
        seen = [np.arange(0)] * 3
        for axis, other in enumerate(axes):
            places = across[other, axis] * np.arange(self.shape[axis]) + across[other, 3]
            seen[other] = np.clip(np.rint(places), 0, self.seen_shape[other] - 1).astype(np.intp)
        return classes[np.ix_(*seen)].transpose(axes)


def _check(classes: Tensor, shape: tuple[int, ...], stem: Path) -> None:
    if tuple(classes.shape) != shape:
        raise UsageError(
            f"the prediction for {stem} has the shape {tuple(classes.shape)} and its image {shape}: "
            "give one class for each pixel of the image"
        )


def _bytes(classes: Tensor) -> NDArray[np.uint8]:
    return classes.detach().cpu().numpy().astype(np.uint8)


def _beside(stem: Path, ending: str) -> Path:
    stem.parent.mkdir(parents=True, exist_ok=True)
    return stem.with_name(stem.name + ending)
