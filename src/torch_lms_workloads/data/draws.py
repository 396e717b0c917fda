"""Random numbers that depend on nothing but what they are for."""

from enum import IntEnum

import numpy as np
from numpy.random import Generator


class Purpose(IntEnum):
    """What numbers are drawn for: two purposes never share a sequence."""

    ORDER = 1
    SAMPLE = 2
    SYNTHETIC = 3


def generator(purpose: Purpose, seed: int, *parts: int) -> Generator:
    """The same sequence for the same arguments, whatever the process or its number of workers."""
    return np.random.default_rng([purpose, seed, *parts])
