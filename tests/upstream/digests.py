"""Digests of what tests compare: a test passes within tolerances, where LMS promises the same bits."""

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_utils

import torch_lms
from torch_lms.runtime.executor import memory_of

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_LONGEST_NEST = 8


class Recorder:
    """Keeps a digest of every value that is compared while it is on."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.on = False

    def install(self) -> None:
        """Look on at the comparisons of PyTorch's tests. Before a test file is imported: it may import them by name."""
        common_utils.TestCase.assertEqual = self._looking_on(common_utils.TestCase.assertEqual, first=1)
        torch.testing.assert_close = self._looking_on(torch.testing.assert_close, first=0)

    def _looking_on(self, compare: Callable[..., Any], first: int) -> Callable[..., Any]:
        @wraps(compare)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self.on:
                for value in args[first : first + 2]:
                    self.digests += (found for leaf in _leaves(value) if (found := _digest(leaf)))
            return compare(*args, **kwargs)

        return wrapper


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, list | tuple | Mapping) and depth < _LONGEST_NEST:
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part, depth + 1)
    else:
        yield value


def _digest(leaf: Any) -> str:
    """Empty if ``leaf`` has no bits to compare, or none that can be read without running a test's own code."""
    if type(leaf) in _PLAIN_TYPES:
        return _of_tensor(leaf)
    if isinstance(leaf, float):
        return _short(struct.pack("d", leaf))
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        return _short(f"{leaf.dtype} {leaf.shape}".encode(), leaf.tobytes())
    return ""


def _of_tensor(tensor: torch.Tensor) -> str:
    """Reads memory directly: an operation would be seen by the modes and hooks that tests look at."""
    with torch._C.DisableTorchFunctionSubclass():
        if _is_unreadable(tensor):
            return ""
        head = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.is_conj()} {tensor.is_neg()}"
        if not tensor.numel():
            return _short(head.encode())
        with _resident(tensor):
            return _short(head.encode(), _bytes(tensor))


def _is_unreadable(tensor: torch.Tensor) -> bool:
    return (
        torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or torch._is_functional_tensor(tensor)
        or tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.is_nested
        or any(isinstance(size, torch.SymInt) for size in tensor.shape)
        or not torch._C._has_storage(tensor)
    )


def _resident(tensor: torch.Tensor) -> AbstractContextManager[None]:
    return torch_lms.pinned(tensor) if torch_lms.is_enabled() else nullcontext()


def _bytes(tensor: torch.Tensor) -> bytes:
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    memory = memory_of(tensor.untyped_storage())
    shape, offset = (*tensor.shape, size), tensor.storage_offset() * size
    return np.ndarray(shape, np.uint8, memory, offset, (*strides, 1)).tobytes()


def _short(*parts: bytes) -> str:
    return hashlib.sha1(b" ".join(parts)).hexdigest()[:10]
