"""What a data set says of itself: enough to build a network, a loss and a metric for it."""

from dataclasses import dataclass
from typing import Literal

Colour = tuple[int, int, int]
Task = Literal["segmentation", "classification"]

PALETTE_ENTRIES = 256


@dataclass(frozen=True)
class About:
    """
    Attributes:
        kind: the format's name.
        task: a class for every pixel or voxel, or one for the whole.
        names: of the classes, in the order of their numbers.
        dimensions: of an image, channels aside: 2 or 3.
        channels: of an image.
        ignored: the label of pixels that do not count, None if all do.
        colours: of the classes in pictures of a prediction; None for those of PASCAL VOC.
    """

    kind: str
    task: Task
    names: tuple[str, ...]
    dimensions: int = 2
    channels: int = 3
    ignored: int | None = None
    colours: tuple[Colour, ...] | None = None

    @property
    def classes(self) -> int:
        return len(self.names)

    def palette(self) -> list[int]:
        """256 colours, red, green and blue after another, as a palette PNG has them."""
        colours = voc_colours() if self.colours is None else (*self.colours, *[(0, 0, 0)] * PALETTE_ENTRIES)
        return [value for colour in colours[:PALETTE_ENTRIES] for value in colour]


def voc_colours() -> tuple[Colour, ...]:
    """PASCAL VOC's: the bits of a number go in turn to red, green and blue, the lowest to the highest bit there."""
    return tuple((_spread(number, 0), _spread(number, 1), _spread(number, 2)) for number in range(PALETTE_ENTRIES))


def _spread(number: int, channel: int) -> int:
    return sum((number >> (3 * bit + channel) & 1) << 7 - bit for bit in range(3))


def numbered(classes: int) -> tuple[str, ...]:
    """Names for classes that have none."""
    return ("background", *(f"class {number}" for number in range(1, classes)))
