"""Classes of the pixels of a picture, from a mask file."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torch_lms.errors import UsageError
from torch_lms_workloads.data.pictures import decoded

Classes = NDArray[np.uint8]
"""(height, width): classes, and ``losses.IGNORED`` where they do not count."""

READABLE = ("1", "L", "P", "I", "I;16", "I;16L", "I;16B", "I;16N")
"""The modes whose pixels are whole numbers, not colours."""

UNKNOWN = -1


class Labels(ABC):
    """The classes of one picture's pixels."""

    @abstractmethod
    def drawn(self, width: int, height: int) -> Classes:
        """
        Raises:
            UsageError: they cannot be read, are for a picture of another size, or there is no such class.
        """


@dataclass(frozen=True)
class Table:
    """What the numbers in mask files mean.

    Attributes:
        classes: by number; ``UNKNOWN`` for those that mean nothing.
        meaning: the numbers that mean something, for people.
    """

    classes: NDArray[np.int16]
    meaning: str

    @classmethod
    def of(cls, known: Mapping[int, int], meaning: str) -> "Table":
        classes = np.full(258, UNKNOWN, dtype=np.int16)  # the last two entries: above 255, and below 0
        classes[list(known)] = list(known.values())
        return cls(classes, meaning)


@dataclass(frozen=True)
class MaskFile(Labels):
    """A greyscale or palette picture whose pixels are numbers of classes."""

    path: Path
    table: Table

    def drawn(self, width: int, height: int) -> Classes:
        numbers = self._numbers(width, height)
        classes = self.table.classes[np.clip(numbers, -1, 256)]
        if classes.min() == UNKNOWN:
            wrong = np.unique(numbers[classes == UNKNOWN])[:5].tolist()
            raise UsageError(
                f"{self.path} has labels that are no class: {', '.join(map(str, wrong))}; there are "
                f"{self.table.meaning}: correct the mask, or name the right kind of data"
            )
        return classes.astype(np.uint8)

    def _numbers(self, width: int, height: int) -> NDArray[np.int32]:
        mask = decoded(self.path)
        if mask.mode not in READABLE:
            raise UsageError(
                f"{self.path} has colours (mode {mask.mode}) where numbers of classes are expected: "
                "save it as greyscale or with a palette"
            )
        if mask.size != (width, height):
            raise UsageError(
                f"{self.path} is {mask.width}x{mask.height} and its image {width}x{height}: "
                "make the mask anew at the size of the image"
            )
        return np.asarray(mask).astype(np.int32)
