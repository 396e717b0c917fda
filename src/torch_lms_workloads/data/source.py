"""Where samples come from: one interface for all formats."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from numpy.random import Generator
from torch import Tensor

from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.predictions import Prediction


@dataclass(frozen=True)
class Whole:
    """One image at its own size.

    Attributes:
        image: (channels, *sides), float32, normalized.
        target: int64, classes (*sides) or one class (); None if nobody knows.
        name: of the file below the data set's folder, without its ending.
        prediction: how a prediction of it is written; None if it is one class.
    """

    image: Tensor
    target: Tensor | None
    name: str
    prediction: Prediction | None


class Source(ABC):
    """Samples of one split of one data set, read when they are asked for.

    Attributes:
        about: what they are.
    """

    about: About

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def crop(self, index: int, size: int, draw: Generator | None) -> tuple[Tensor, Tensor]:
        """A part of one image with all sides ``size``, normalized float32, and its target, int64.

        Args:
            index: which.
            size: pixels or voxels along each side; a smaller image is scaled up.
            draw: chooses the part and augments it; None takes the middle as it is.

        Raises:
            UsageError: a file that is damaged or does not fit the other; names it.
        """

    @abstractmethod
    def whole(self, index: int) -> Whole:
        """One image with all its pixels or voxels.

        Raises:
            UsageError: as above.
        """
