"""What an operation has to do: its kind, its arithmetic, the bytes that it touches."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from torch_lms.capture.registry import storage_nbytes
from torch_lms.capture.schema import OpInfo
from torch_lms.capture.tensors import untyped_storage
from torch_lms.trace import CONVOLUTIONS, Work

_MATRIX = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear"),
        *("_scaled_mm", "_grouped_mm"),
    }
)

_COPIES = frozenset(
    {
        *("copy_", "_to_copy", "clone", "cat", "stack", "constant_pad_nd", "fill_", "zero_", "zeros", "ones", "full"),
        *("zeros_like", "ones_like", "full_like", "new_zeros", "new_full", "index_select", "gather", "embedding"),
        *("flip", "roll", "repeat", "pixel_shuffle", "pixel_unshuffle", "slice_backward", "select_backward"),
    }
)

_POOLINGS = ("pool", "upsample")

_NORMALIZATIONS = ("batch_norm", "layer_norm", "group_norm", "rms_norm", "softmax", "instance_norm")

_LOOKUPS = frozenset({"embedding", "index_select", "gather", "index"})
"""Of their first argument they read no more than they give."""

_MAX_WORKSPACE_BYTES = 256 << 20
"""Bytes of workspace that a convolution is assumed to use at most."""

_DIMS_OF_VOLUMES = 5
"""Of a tensor: batch, channels, and three of space."""


def work_of(info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Work:
    """The work of the call ``func(*args, **kwargs)`` that gave ``result``. Tensors need have no bytes.

    FLOPs are those of ``torch.utils.flop_counter``, but for formulas of our own where it lacks one or is wrong. The
    workspace of a convolution is an assumption: as much as it reads and writes, 256 MiB at most, where its kernel is
    no point.
    """
    name = info.packet.removeprefix("aten::")
    given = _tensors(pytree.arg_tree_leaves(*args, **kwargs))
    made = _tensors(pytree.tree_leaves(result))
    if info.empty:
        nbytes = 0
    elif name in _LOOKUPS:
        nbytes = _touched(made) + _touched(given[1:]) + _touched(made)
    else:
        nbytes = _touched(given) + _touched(made)
    if not made:
        nbytes += _touched(_tensors(pytree.tree_leaves(info.written_args(args, kwargs))))
    kind = _kind(name, args)
    workspace = 0
    if kind in CONVOLUTIONS and _kernel_size(args, name) > 1:
        workspace = min(nbytes, _MAX_WORKSPACE_BYTES)
    return Work(kind, _dtype(given, made), _flops(name, func, args, kwargs, result), nbytes, workspace)


def _tensors(leaves: list[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _kind(name: str, args: tuple[Any, ...]) -> str:
    if "convolution" in name:
        weight = _weight(args, name)
        groups = args[-2] if name == "convolution_backward" else args[-1]
        if groups > 1 and groups == weight.shape[0]:
            return "depthwise"
        return "convolution3d" if weight.dim() == _DIMS_OF_VOLUMES else "convolution"
    if name in _MATRIX or "scaled_dot_product" in name or "rnn" in name:
        return "matrix"
    if any(part in name for part in _NORMALIZATIONS):
        return "normalization"
    if any(part in name for part in _POOLINGS):
        return "pooling"
    if name in _COPIES:
        return "copy"
    return "elementwise"


def _weight(args: tuple[Any, ...], name: str) -> torch.Tensor:
    weight: torch.Tensor = args[2 if name == "convolution_backward" else 1]
    return weight


def _kernel_size(args: tuple[Any, ...], name: str) -> int:
    return int(_weight(args, name).shape[2:].numel())


def _dtype(given: list[torch.Tensor], made: list[torch.Tensor]) -> str:
    """The type of the largest floating-point tensor, or of the largest of all if there is none."""
    floating = [tensor for tensor in (*given, *made) if tensor.is_floating_point() or tensor.is_complex()]
    largest = max(floating or given or made, key=torch.Tensor.numel, default=None)
    return "float32" if largest is None else str(largest.dtype).removeprefix("torch.")


def _touched(tensors: list[torch.Tensor]) -> int:
    """Bytes of the elements that each of ``tensors`` shows, but no more than its storage has."""
    total = 0
    for tensor in tensors:
        shown = tensor.numel() * tensor.element_size()
        total += min(shown, int(storage_nbytes(untyped_storage(tensor))))  # an expanded one shows some many times
    return total


def _flops(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    if name in _FORMULAS:
        return int(_FORMULAS[name](args))
    if "_pool" in name and "backward" not in name and "adaptive" not in name:
        return _pooling(args[1], pytree.tree_leaves(result)[0])
    formula = flop_registry.get(getattr(func, "_overloadpacket", None))
    if formula is None:
        return 0
    return int(formula(*args, **kwargs, out_val=result))


def _convolution_backward(args: tuple[Any, ...]) -> int:
    """Either gradient takes as much as the convolution did. PyTorch's own count knows nothing of groups."""
    grad, given, weight = args[:3]
    is_transposed = args[7]
    wanted = args[-1]
    positions = (given if is_transposed else grad).shape[2:].numel()
    return int(sum(wanted[:2]) * 2 * given.shape[0] * positions * weight.numel())


def _matrix_times_vector(args: tuple[Any, ...]) -> int:
    matrix: torch.Tensor = args[0]
    return 2 * matrix.numel()


def _added_matrix_times_vector(args: tuple[Any, ...]) -> int:
    matrix: torch.Tensor = args[1]
    return 2 * matrix.numel()


def _dot(args: tuple[Any, ...]) -> int:
    vector: torch.Tensor = args[0]
    return 2 * vector.numel()


def _pooling(kernel: int | list[int], pooled: torch.Tensor) -> int:
    """One for each place of a window."""
    sides = [kernel] if isinstance(kernel, int) else kernel
    window = prod(sides)
    if len(sides) == 1:  # the same in all dimensions but batch and channels
        window **= pooled.dim() - 2
    return int(window) * pooled.numel()


def _attention(args: tuple[Any, ...]) -> int:
    """Two products of matrices: scores, and their product with the values."""
    query, key, value = args[:3]
    return int(2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1]))


def _attention_backward(args: tuple[Any, ...]) -> int:
    """Five products: scores once more, and gradients of the three arguments and the scores (arXiv 2205.14135)."""
    return _attention(args[1:4]) * 5 // 2


def _grouped(args: tuple[Any, ...]) -> int:
    """Products of matrices. Where rows or columns are divided among groups, all groups make one matrix together."""
    left, right = args[:2]
    groups = len(left) if left.dim() == right.dim() == 3 else 1
    return int(groups * 2 * left.shape[-2:].numel() * right.shape[-1])


def _recurrent(args: tuple[Any, ...]) -> int:
    """At each time step of a layer, the products of input and hidden state with their weights."""
    source, *weights = args[:3]
    return int(2 * source.shape[:2].numel() * sum(weight.numel() for weight in weights))


def _recurrent_backward(args: tuple[Any, ...]) -> int:
    return 2 * _recurrent(args)


_FORMULAS: dict[str, Callable[[tuple[Any, ...]], int]] = {
    "convolution_backward": _convolution_backward,
    "mv": _matrix_times_vector,
    "addmv": _added_matrix_times_vector,
    "dot": _dot,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_grouped_mm": _grouped,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
}
"""How many FLOPs a call has, from its arguments, by the operator's name."""
