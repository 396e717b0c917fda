"""torch's data sets over any source."""

from collections.abc import Iterator

from torch import Tensor
from torch.utils.data import Dataset

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.draws import Purpose, generator
from torch_lms_workloads.data.source import Source, Whole

Key = int | tuple[int, int]
"""Of a sample: its index, or the epoch and the index. The epoch goes along, so that workers need not be told of it."""


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Images and targets of one size, to be trained with: see ``Source.crop``.

    What is drawn depends on the seed, the epoch and the index alone.

    Attributes:
        source: where they come from.
        size: of all sides.
        augment: choose, scale and flip at random; otherwise the middle as it is.
        seed: of what is random.
    """

    def __init__(self, source: Source, size: int, *, augment: bool, seed: int) -> None:
        if size < 1 or seed < 0:
            raise UsageError(f"size must be at least 1, and seed not negative; got {size} and {seed}")
        self.source = source
        self.size = size
        self.augment = augment
        self.seed = seed

    @property
    def about(self) -> About:
        return self.source.about

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        draw = generator(Purpose.SAMPLE, self.seed, epoch, index) if self.augment else None
        return self.source.crop(within(index, len(self)), self.size, draw)


class Wholes(Dataset[Whole]):
    """Images at their own size, to be predicted and measured: see ``Source.whole``."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def about(self) -> About:
        return self.source.about

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Whole:
        return self.source.whole(within(index, len(self)))

    def __iter__(self) -> Iterator[Whole]:
        return (self[index] for index in range(len(self)))


def within(index: int, length: int) -> int:
    """
    Raises:
        IndexError: no such sample; this is how a loop over a data set ends.
    """
    if not 0 <= index < length:
        raise IndexError(f"there are {length} samples; got index {index}")
    return index
