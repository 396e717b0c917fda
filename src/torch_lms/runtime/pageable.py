"""What may be paged, and what must stay on its device (N12)."""

import torch

from torch_lms.capture.registry import STORAGE
from torch_lms.runtime.executor import CAN_SWAP

NOT_RESIZABLE = "not resizable"

READ_UNSEEN_WIDE = 1 << 20
"""Integers of 32 and 64 bits on the CPU below so many bytes are read by PyTorch itself without an operation that shows
it: lengths and indices."""

READ_UNSEEN = 64 << 10
"""The same for the other integer types."""

_WIDE = frozenset({torch.int32, torch.int64})


def why_unpageable(storage: torch.UntypedStorage, is_owned: bool) -> str:
    """Why ``storage`` must stay on its device, "" if it may leave.

    Args:
        storage: a page.
        is_owned: whether the program owns it, and nobody else its memory (a parameter, or optimizer state).
    """
    if storage.device.type == "cpu" and storage.is_shared():
        return "shared memory"
    if STORAGE.resizable(storage) or (is_owned and CAN_SWAP):
        return ""
    return NOT_RESIZABLE


def is_read_unseen(tensor: torch.Tensor, nbytes: int) -> bool:
    """Whether PyTorch may read ``tensor``, of a storage of ``nbytes``, without an operation that shows it."""
    return tensor.device.type == "cpu" and is_type_read_unseen(tensor.dtype, nbytes)


def is_type_read_unseen(dtype: torch.dtype, nbytes: int) -> bool:
    """The same for a tensor of ``dtype`` on the CPU."""
    if dtype.is_floating_point or dtype.is_complex:
        return False
    return nbytes < (READ_UNSEEN_WIDE if dtype in _WIDE else READ_UNSEEN)
