"""Placeholders: tensors given in place of others of which an operation asks nothing but the shape (N10)."""

import ctypes
import mmap
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._prims_common import suggest_memory_format

from torch_lms.capture.tensors import span, untyped_storage

_C: Any = torch._C

_mappings: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
"""Storages of placeholders on addresses that have no memory behind them."""


def is_placeholder(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is one that seems to have as many bytes as what it stands for."""
    return untyped_storage(tensor) in _mappings


def for_gradient_of_input(args: tuple[Any, ...]) -> torch.Tensor | None:
    """A placeholder for the input of a convolution, where of its gradients only that of the input is wanted.

    It leads to the same kernel as the input itself, and may be read, though to no purpose. On the CPU it has the
    input's strides, on memory that is mapped but not there. For cuDNN, which does not touch it, it is one number
    expanded, as in ``torch.nn.grad.conv2d_input``.

    Args:
        args: the arguments of ``aten::convolution_backward``.

    Returns:
        None if the input itself must be there.
    """
    tensor: torch.Tensor = args[1]
    weight = args[2]
    settings = args[4:10]
    if tensor.device.type == "cpu":
        return _mapped(tensor)
    if tensor.device.type != "cuda":
        return None
    if _C._select_conv_backend(tensor, weight, None, *settings) is not _C._ConvBackend.Cudnn:
        return None
    is_plain_input = suggest_memory_format(tensor) == torch.contiguous_format
    is_plain_weight = suggest_memory_format(weight) == torch.contiguous_format
    if is_plain_weight and not is_plain_input:
        return None  # it is the input by which cuDNN's memory format is chosen
    return tensor.new_empty(1).expand(tensor.shape)


def of_shape(shape: Sequence[int], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of which nothing but the shape is asked, and the strides on a CPU."""
    if device.type == "cpu":
        like = torch.empty_strided(tuple(shape), strides, dtype=dtype, device="meta")
        if (mapped := _mapped(like)) is not None:
            return mapped
    return torch.empty(1, dtype=dtype, device=device).expand(shape)


def _mapped(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor of the same shape, strides and type, on addresses that have no memory behind them until they are read.

    None if there are no addresses left.
    """
    if not tensor.numel():
        return None
    nbytes = span(tensor) * tensor.element_size()
    try:
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
    except OSError:  # a limit on addresses
        return None
    # `torch.frombuffer` warns of memory that must not be written. A ctypes array of its address hides that.
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    buffer = (ctypes.c_char * len(memory)).from_address(address)
    buffer.mapping = memory  # type: ignore[attr-defined]  # which lives as long as the storage
    found = torch.frombuffer(buffer, dtype=tensor.dtype)
    _mappings.add(untyped_storage(found))
    return found.as_strided(tensor.shape, tensor.stride())
