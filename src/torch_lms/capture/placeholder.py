"""Tensors that stand in for others of which an operation asks nothing but the shape."""

import ctypes
import mmap
from typing import Any

import numpy as np
import torch
from torch._prims_common import suggest_memory_format

from torch_lms.capture.tensors import span

_C: Any = torch._C


def for_gradient_of_input(args: tuple[Any, ...]) -> torch.Tensor | None:
    """In place of the input, among the arguments of a convolution's gradients where only that of the input is wanted.

    It leads to the same kernel as the input itself, and may be read, though to no purpose. On the CPU it has the
    input's strides, on memory that is mapped but not there. For cuDNN, which does not touch it, it is one number
    expanded, as in ``torch.nn.grad.conv2d_input``.

    Returns:
        None if the input itself must be there.
    """
    tensor: torch.Tensor = args[1]
    weight, settings = args[2], args[4:10]
    if tensor.device.type == "cpu":
        return _mapped(tensor)
    if tensor.device.type != "cuda":
        return None
    if _C._select_conv_backend(tensor, weight, None, *settings) is not _C._ConvBackend.Cudnn:
        return None
    plain = torch.contiguous_format
    if suggest_memory_format(tensor) != plain and suggest_memory_format(weight) == plain:
        return None  # it is the input by which cuDNN's memory format is chosen
    return tensor.new_empty(1).expand(tensor.shape)


def _mapped(tensor: torch.Tensor) -> torch.Tensor | None:
    if not tensor.numel():
        return None
    nbytes = span(tensor) * tensor.element_size()
    try:
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
    except OSError:  # a limit on addresses
        return None
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    buffer = (ctypes.c_char * len(memory)).from_address(address)
    buffer.mapping = memory  # type: ignore[attr-defined]  # which lives as long as the storage
    return torch.frombuffer(buffer, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
