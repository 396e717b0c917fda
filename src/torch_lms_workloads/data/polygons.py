"""Classes of pixels from outlines, as COCO has them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco

from torch_lms.errors import UsageError
from torch_lms_workloads.data.masks import Classes, Labels

LEAST_POINTS = 3


@dataclass(frozen=True)
class Outline:
    """
    Attributes:
        number: of the annotation.
        label: its class.
        area: in pixels; smaller things lie in front of larger ones.
        shape: as COCO's ``segmentation``: polygons (x and y in turn), or runs.
    """

    number: int
    label: int
    area: float
    shape: Any


@dataclass(frozen=True)
class Outlines(Labels):
    """All outlines in one picture; the rest is background, class 0.

    Attributes:
        width, height: of the picture that they were drawn for.
        outlines: in any order.
        path: the annotations' file, for messages.
        picture: the picture's file, the same.
    """

    width: int
    height: int
    outlines: tuple[Outline, ...]
    path: Path
    picture: Path

    def drawn(self, width: int, height: int) -> Classes:
        if (width, height) != (self.width, self.height):
            raise UsageError(
                f"{self.picture} is {width}x{height}, and {self.path} has its outlines for {self.width}x{self.height}: "
                "fetch the picture at its full size"
            )
        classes = np.zeros((height, width), dtype=np.uint8)
        for outline in sorted(self.outlines, key=lambda outline: (-outline.area, outline.number)):
            classes[self._covered(outline)] = outline.label
        return classes

    def _covered(self, outline: Outline) -> NDArray[np.bool_]:
        """True inside, (height, width)."""
        covered: NDArray[np.uint8] = coco.decode(self._runs(outline))
        if covered.shape != (self.height, self.width):
            raise UsageError(f"{self.path}: annotation {outline.number} is for a picture of another size: remove it")
        return covered.astype(bool)

    def _runs(self, outline: Outline) -> Any:
        match outline.shape:
            case {"counts": list(), "size": [_, _]}:
                return coco.frPyObjects(outline.shape, self.height, self.width)
            case {"counts": str() | bytes(), "size": [_, _]}:
                return outline.shape
            case [_, *_] as polygons if all(map(_is_polygon, polygons)):
                return coco.merge(coco.frPyObjects(polygons, self.height, self.width))
            case _:
                raise UsageError(
                    f"{self.path}: the segmentation of annotation {outline.number} is neither polygons of at least "
                    "3 points nor runs: correct or remove it"
                )


def _is_polygon(points: Any) -> bool:
    """x and y in turn."""
    return isinstance(points, list) and len(points) >= 2 * LEAST_POINTS and len(points) % 2 == 0
