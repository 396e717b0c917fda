"""The tensors among an operation's arguments, and their storages."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.nn.parameter import Parameter
from torch.utils import _pytree as pytree

from torch_lms.capture.registry import STORAGE, storage_nbytes

untyped_storage = torch._C.TensorBase.untyped_storage
set_view = torch._C.TensorBase.set_
"""The methods below those of ``torch.Tensor``, which are patched."""

has_storage = torch._C._has_storage
"""Whether a tensor has bytes of the kind that we know: no sparse one has, none of mkldnn's, none of a lazy device."""

no_torch_function = torch._C.DisableTorchFunctionSubclass
"""Subclasses do not see what is called."""

no_function_modes = torch._C.DisableTorchFunction
"""Neither do modes of the program's, which `torch.set_default_device` is made of, too."""

_PLAIN = frozenset({torch.Tensor, Parameter})
_Page = TypeVar("_Page")
_SCALARS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
_PYTHON_KEY = torch._C.DispatchKey.Python


def tensors_among(values: Any) -> list[Any]:
    """Tensors and storages among ``values`` and in lists there.

    In place of a sparse tensor, or of a subclass that wraps others, its parts: most have no bytes of their own.
    """
    found: list[Any] = []
    for value in values:
        if type(value) in _PLAIN or isinstance(value, torch.Tensor):
            if is_transformed(value) or (type(value) not in _PLAIN and is_wrapper(value)):
                found.extend(tensors_among(_wrapped(value)))
                if has_bytes(value):
                    found.append(value)
            elif has_storage(value):
                found.append(value)
            else:
                found.extend(_parts(value))
        elif isinstance(value, list | tuple):
            found.extend(tensors_among(value))
        elif isinstance(value, torch.UntypedStorage):
            found.append(value)
    return found


def plain_pages(
    values: Any, find: Callable[[torch.UntypedStorage], _Page | None], min_size: int, pages: list[_Page]
) -> int:
    """How many tensors are among ``values``; -1 if one of them needs a closer look. Pages among them go to ``pages``.

    The first look at most operations, most often the only one: it must be quick.

    Args:
        values: arguments of an operation, or its result.
        find: the page of a storage, or None.
        min_size: bytes from which on a storage that is no page yet needs a closer look.
        pages: is added to.
    """
    seen = 0
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            if not has_storage(value):
                return -1
            storage = untyped_storage(value)
            page = find(storage)
            if page is not None:
                pages.append(page)
            elif not value.is_meta and storage_nbytes(storage) >= min_size:  # on the meta device it may be a symbol
                return -1
            seen += 1
        elif kind is list or kind is tuple:
            if value and type(value[0]) not in _SCALARS:
                inside = plain_pages(value, find, min_size, pages)
                if inside < 0:
                    return -1
                seen += inside
        elif kind not in _SCALARS:
            return -1
    return seen


def objects_among(values: Any) -> list[Any]:
    """What is neither a number nor a setting among ``values`` and in lists there: of arguments, tensors above all."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple):
            found.extend(objects_among(value))
        elif type(value) not in _SCALARS:
            found.append(value)
    return found


def with_objects(values: Any, change: Callable[[Any], Any]) -> list[Any]:
    """``values``, and the lists there, with ``change`` of each of those in its place."""
    changed: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple):
            changed.append(with_objects(value, change))
        else:
            changed.append(value if type(value) in _SCALARS else change(value))
    return changed


def tensors_within(values: Any) -> list[Any]:
    """Tensors and storages at any depth of ``values``, parameters and buffers of modules there included."""
    leaves = pytree.tree_leaves(values)
    modules = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]
    held = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return tensors_among((*leaves, *held))


def storage_of(tensor: Any) -> torch.UntypedStorage:
    """The storage of a dense tensor, or of a storage itself."""
    if isinstance(tensor, torch.UntypedStorage):
        return tensor
    storage: torch.UntypedStorage = untyped_storage(tensor)
    return storage


def is_wrapper(tensor: Any) -> bool:
    """Whether ``tensor`` is a subclass that dispatches by itself: most have no bytes of their own."""
    return isinstance(tensor, torch.Tensor) and torch._C._dispatch_keys(tensor).has(_PYTHON_KEY)


def has_bytes(wrapper: Any) -> bool:
    """Whether ``wrapper`` has bytes of its own, resident or evicted. Others have a size, and no address."""
    if not has_storage(wrapper) or is_transformed(wrapper):
        return False
    storage = untyped_storage(wrapper)
    try:
        return storage.device.type != "meta" and bool(STORAGE.data_ptr(storage) or not storage_nbytes(storage))
    except RuntimeError:  # a storage in name only, as those of jagged tensors
        return False


def wrappers_among(values: Any) -> list[Any]:
    """Tensors among ``values`` and in lists there that dispatch by themselves."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple):
            found.extend(wrappers_among(value))
        elif is_wrapper(value):
            found.append(value)
    return found


is_transformed = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor belongs to a transformation of ``torch.func`` under way."""


def span(tensor: torch.Tensor) -> int:
    """Elements of the storage from the first to the last that ``tensor`` shows; it shows one at least."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


_ALIGNMENT = 64
"""Bytes. PyTorch's memory begins at multiples of that, at least."""


def misalignment(tensor: torch.Tensor) -> int:
    """Elements by which ``tensor`` begins behind such a multiple."""
    return int(tensor.storage_offset()) % max(1, _ALIGNMENT // tensor.element_size())


def is_strided(values: Any) -> bool:
    """Whether all tensors among ``values`` and in lists there are views of one storage each."""
    return all(
        is_strided(value)
        if isinstance(value, list | tuple)
        else not isinstance(value, torch.Tensor) or (value.layout is torch.strided and not value.is_nested)
        for value in values
    )


def is_plain(tensor: Any) -> bool:
    """Whether asking ``tensor`` for its properties runs nobody else's code."""
    return type(tensor) in _PLAIN or type(tensor) is torch.UntypedStorage


def is_bare(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is its storage, size, strides, offset and type, and nothing else."""
    return type(tensor) in _PLAIN and is_unadorned(tensor)


def is_unadorned(tensor: torch.Tensor) -> bool:
    """The same, whatever type Python has for it."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    return not (tensor.is_conj() or tensor.is_neg() or _has_names(tensor) or is_transformed(tensor))


def _has_names(tensor: torch.Tensor) -> bool:
    """From PyTorch 2.13 on no tensor has any. What is traced refuses to tell them, and has none."""
    return hasattr(tensor, "has_names") and bool(tensor.has_names())


def _wrapped(tensor: Any) -> list[Any]:
    """What a wrapper is made of, as far as it tells."""
    if is_transformed(tensor):
        return [torch._C._functorch.get_unwrapped(tensor)]
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return []
    names = flatten()[0]
    return [getattr(tensor, name) for name in names]


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a sparse one is made of."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []  # one of mkldnn's shows its parts to nobody
