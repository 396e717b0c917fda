"""What may be paged, and what must stay on its device (N12)."""

import torch

from torch_lms.capture.registry import STORAGE
from torch_lms.runtime.executor import CAN_SWAP

NOT_RESIZABLE = "not resizable"

_READ_UNSEEN = {torch.int32: 1 << 20, torch.int64: 1 << 20}
"""Tensors of these types on the CPU below so many bytes are read by PyTorch itself without an operation that shows it:
lengths and indices."""

_SMALL = 64 << 10
"""The same for the other integer types."""


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
    if tensor.device.type != "cpu" or tensor.is_floating_point() or tensor.is_complex():
        return False
    return nbytes < _READ_UNSEEN.get(tensor.dtype, _SMALL)
