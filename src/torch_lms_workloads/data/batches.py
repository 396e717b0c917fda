"""Loaders: which samples make a batch, on which rank.

Training goes on without end, batch after batch; an epoch may end within one. So every batch has the same shape, data
that are fewer than a batch can be trained with, and any step can be the first: that is how training is resumed.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from torch_lms.errors import UsageError
from torch_lms_workloads.data.datasets import Samples
from torch_lms_workloads.data.draws import Purpose, generator

Loader = DataLoader[tuple[Tensor, Tensor]]


class Steps(Sampler[list[tuple[int, int]]]):
    """The keys of each batch, without end: see ``training_batches``."""

    def __init__(self, length: int, batch: int, *, seed: int, start: int, rank: int, ranks: int) -> None:
        _check(batch, rank, ranks)
        self.length = length
        self.batch = batch
        self.seed = seed
        self.start = start
        self.rank = rank
        self.ranks = ranks

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in count(self.start):
            first = (step * self.ranks + self.rank) * self.batch
            yield [self._key(position) for position in range(first, first + self.batch)]

    def _key(self, position: int) -> tuple[int, int]:
        epoch, place = divmod(position, self.length)
        return epoch, int(_order(self.length, self.seed, epoch)[place])


def training_batches(
    data: Samples, batch: int, *, start: int = 0, rank: int = 0, ranks: int = 1, workers: int = 0, pin: bool = False
) -> Loader:
    """Batches (images, targets) without end, shuffled anew in each epoch.

    All ranks together see what one process with a batch of ``ranks * batch`` would see, whatever the number of workers.

    Args:
        data: what is trained with.
        batch: samples of one batch on one rank.
        start: batches to pass over, as many as a resumed run had.
        rank, ranks: which of how many.
        workers: processes that read ahead; 0 reads in this one.
        pin: put batches into page-locked memory.

    Raises:
        UsageError: no batch, or no such rank.
    """
    keys = Steps(len(data), batch, seed=data.seed, start=start, rank=rank, ranks=ranks)
    # a generator of its own: otherwise starting the loader draws from the one that dropout draws from
    own = torch.Generator().manual_seed(data.seed)
    return DataLoader(data, batch_sampler=keys, num_workers=workers, pin_memory=pin, generator=own)


def validation_batches(
    data: Samples, batch: int, *, rank: int = 0, ranks: int = 1, workers: int = 0, pin: bool = False
) -> Loader:
    """Batches of all samples, each once, in order; the last may be smaller. Arguments as ``training_batches``."""
    _check(batch, rank, ranks)
    keys = range(rank, len(data), ranks)
    own = torch.Generator().manual_seed(data.seed)
    return DataLoader(data, batch, sampler=keys, num_workers=workers, pin_memory=pin, generator=own)


def steps_per_epoch(length: int, batch: int, ranks: int = 1) -> int:
    """Steps until every one of ``length`` samples was seen."""
    return -(-length // (batch * ranks))


@lru_cache(maxsize=2)
def _order(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return generator(Purpose.ORDER, seed, epoch).permutation(length)


def _check(batch: int, rank: int, ranks: int) -> None:
    if batch < 1 or not 0 <= rank < ranks:
        raise UsageError(f"expected a batch of at least 1 and a rank below {ranks}; got {batch} and {rank}")
