"""One run of a training: where it writes, and whether LMS is on."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.utils import _pytree as pytree

from tests.bits import bits_of


@dataclass(frozen=True)
class Run:
    """Of a training.

    Attributes:
        folder: where it may write; empty at first.
        options: of ``torch_lms.enable``, for the callback of its trainer. None without LMS, and where the command that
            started this process has turned it on.
        source: a checkout of the library, for a script that its package leaves out; None if none is given.
    """

    folder: Path
    options: dict[str, Any] | None
    source: Path | None = None

    def callbacks(self, new: Callable[..., Any]) -> list[Any]:
        """The callback that ``new`` makes, or none."""
        return [] if self.options is None else [new(**self.options)]


def digest(value: Any) -> str:
    """Of the bits of all tensors, bytes and numbers in ``value``, a nest of lists and dicts."""
    found = xxhash.xxh3_128()
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            found.update(repr((leaf.dtype, tuple(leaf.shape))).encode())
            found.update(bits_of(leaf))
        else:
            found.update(leaf if isinstance(leaf, bytes) else repr(leaf).encode())
    return found.hexdigest()
