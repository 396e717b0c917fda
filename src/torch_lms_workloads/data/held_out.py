"""A split for data that come without one: by position, so that it is the same each time."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from torch_lms_workloads.data.files import one_of

Item = TypeVar("Item")

SPLITS = ("train", "val", "all")


def held_out(items: Sequence[Item], split: str, every: int, where: Path) -> Sequence[Item]:
    """``"val"``: the last of every ``every``, or of all if they are fewer; ``"train"``: the others; ``"all"``.

    One item alone is in both, with a warning.

    Raises:
        UsageError: another split.
    """
    one_of("split", split, SPLITS)
    if split == "all" or not items:
        return items
    if len(items) == 1:
        warnings.warn(f"{where} has one sample, which is for training and for validation", stacklevel=2)
        return items
    last = min(every, len(items)) - 1
    return [item for position, item in enumerate(items) if (position % every == last) == (split == "val")]
