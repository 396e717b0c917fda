"""What there is to see of a value: its bytes, types and shapes, as text that can be compared."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from torch_lms.capture.tensors import no_torch_function, tensors_among

_FILL = 3
_MOST = 64
"""Elements of an endless iterator that are looked at."""


def settled(value: Any) -> Any:
    """``value`` with what can be looked at only once replaced: iterators by lists, capsules by tensors."""
    if type(value).__name__ == "PyCapsule":
        try:
            return torch.utils.dlpack.from_dlpack(value)
        except RuntimeError:
            return value  # a capsule of another kind
    if isinstance(value, Iterator):
        return list(islice(value, _MOST))
    if type(value) in (list, tuple):
        return type(value)(settled(item) for item in value)
    return value


def observed(value: Any) -> Any:
    """A nest of texts and of copies of all bytes in ``value``; tensors are copied by operations."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, torch.TypedStorage):
        return [f"TypedStorage {value.dtype}", observed(value._untyped_storage)]
    if isinstance(value, torch.UntypedStorage):
        return ["UntypedStorage", _tensor(torch.empty(0, dtype=torch.uint8).set_(value))]
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return [f"{type(value).__name__} {array.dtype} {array.shape} {array.strides} {array.tolist()}"]
    if isinstance(value, memoryview):
        return [f"memoryview {value.format} {value.shape} {value.tobytes()!r}"]
    if isinstance(value, Mapping):
        return [type(value).__name__, *(item for key in value for item in (repr(key), observed(value[key])))]
    if isinstance(value, list | tuple | set | frozenset):
        return [type(value).__name__, *map(observed, value)]
    return f"{type(value).__name__} {cleaned(_text(value))}"


def _tensor(value: torch.Tensor) -> Any:
    head = f"{type(value).__name__} {value.dtype} {value.layout} {'grad' if value.requires_grad else ''}".strip()
    with no_torch_function(), torch.no_grad():
        if value.is_nested:
            return [head, *map(_tensor, value.unbind())]
        head = f"{head} {tuple(value.shape)}"
        if value.device.type != "cpu":
            return [head, value.device.type]
        if value.is_quantized:
            return [head, str(value.qscheme()), _tensor(value.int_repr())]
        if value.layout is torch._mkldnn:
            return [head, _tensor(value.to_dense())]
        if value.layout is not torch.strided:
            return [head, *map(_tensor, tensors_among([value]))]
        return [head, f"strides {value.stride()}", value.clone()]


def digest(observation: Any) -> str:
    """One text for all of an observation. Reads tensors without operations: LMS must be off."""
    if isinstance(observation, torch.Tensor):
        if torch._C._dispatch_keys(observation).has(torch._C.DispatchKey.Python):
            observation = torch.Tensor._make_subclass(torch.Tensor, observation)
        plain = torch.empty(observation.numel(), dtype=observation.dtype)
        plain.copy_(observation.reshape(-1))
        raw = plain.view(torch.uint8).numpy().tobytes()
        return f"{plain[:8].tolist()} {hashlib.sha1(raw).hexdigest()[:8]}"
    if isinstance(observation, list):
        return f"[{', '.join(map(digest, observation))}]"
    return str(observation)


def fill(value: Any) -> None:
    """Write a number into every byte that ``value`` gives access to."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.fill_(_FILL)
    elif isinstance(value, torch.UntypedStorage | torch.TypedStorage):
        value.fill_(_FILL)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = _FILL
    elif isinstance(value, memoryview) and not value.readonly:
        value.cast("B")[:] = bytes([_FILL]) * value.nbytes
    elif type(value) in (list, tuple):
        for item in value:
            fill(item)


def is_writable(value: Any) -> bool:
    """Whether ``fill`` could write to any of it."""
    if isinstance(value, torch.Tensor | torch.UntypedStorage | torch.TypedStorage):
        return True
    if isinstance(value, np.ndarray | memoryview):
        return not value.readonly if isinstance(value, memoryview) else value.flags.writeable
    return type(value) in (list, tuple) and any(map(is_writable, value))


def error_text(error: BaseException) -> str:
    """Its type and message."""
    return f"{type(error).__name__}: {cleaned(str(error))[:300]}"


def cleaned(text: str) -> str:
    """In one line, without addresses, which differ from run to run."""
    return re.sub(r"0x[0-9a-f]+", "0x...", text).replace("\n", " ")


def _text(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"cannot be printed: {error_text(error)}"
