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

_MOST_WORKSPACE = 256 << 20

_DIMS_OF_VOLUMES = 5


def work_of(info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Work:
    """Of the call ``func(*args, **kwargs)`` that gave ``result``. Tensors need have no bytes.

    FLOPs are those of ``torch.utils.flop_counter``, but for formulas of our own where it lacks one or is wrong. The
    workspace of a convolution is an assumption: as much as it reads and writes, 256 MiB at most, where its kernel is
    no point.
    """
    name = info.packet.removeprefix("aten::")
    given = [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(leaf, torch.Tensor)]
    made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    kind = _kind(name, args)
    nbytes = 0 if info.empty else _touched(given[1:] if name in _LOOKUPS else given) + _touched(made)
    if name in _LOOKUPS:
        nbytes += _touched(made)
    if not made:
        written = pytree.tree_leaves(info.written_args(args, kwargs))
        nbytes += _touched([leaf for leaf in written if isinstance(leaf, torch.Tensor)])
    workspace = min(nbytes, _MOST_WORKSPACE) if kind in CONVOLUTIONS and _kernel_size(args, name) > 1 else 0
    return Work(kind, _dtype(given, made), _flops(name, func, args, kwargs, result), nbytes, workspace)


def _kind(name: str, args: tuple[Any, ...]) -> str:
    if "convolution" in name:
        weight, groups = _weight(args, name), args[-2] if name == "convolution_backward" else args[-1]
        if groups > 1 and groups == weight.shape[0]:
            return "depthwise"
        return "convolution3d" if weight.dim() == _DIMS_OF_VOLUMES else "convolution"
    if name in _MATRIX or "scaled_dot_product" in name or "rnn" in name:
        return "matrix"
    if any(part in name for part in _NORMALIZATIONS):
        return "normalization"
    if any(part in name for part in _POOLINGS):
        return "pooling"
    return "copy" if name in _COPIES else "elementwise"


def _weight(args: tuple[Any, ...], name: str) -> torch.Tensor:
    weight: torch.Tensor = args[2 if name == "convolution_backward" else 1]
    return weight


def _kernel_size(args: tuple[Any, ...], name: str) -> int:
    return int(_weight(args, name).shape[2:].numel())


def _dtype(given: list[torch.Tensor], made: list[torch.Tensor]) -> str:
    """Of the largest floating-point tensor."""
    floating = [tensor for tensor in (*given, *made) if tensor.is_floating_point() or tensor.is_complex()]
    largest = max(floating or given or made, key=torch.Tensor.numel, default=None)
    return "float32" if largest is None else str(largest.dtype).removeprefix("torch.")


def _touched(tensors: list[torch.Tensor]) -> int:
    """Bytes: of each the elements that it shows, but no more than its storage has."""
    return sum(min(t.numel() * t.element_size(), int(storage_nbytes(untyped_storage(t)))) for t in tensors)


def _flops(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    if name in _FORMULAS:
        return int(_FORMULAS[name](args))
    if "_pool" in name and "backward" not in name and "adaptive" not in name:
        return _pooling(args[1], pytree.tree_leaves(result)[0])
    formula = flop_registry.get(getattr(func, "_overloadpacket", None))
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


def _convolution_backward(args: tuple[Any, ...]) -> int:
    """Either gradient takes as much as the convolution did. PyTorch's own count knows nothing of groups."""
    grad, given, weight, is_transposed, wanted = args[0], args[1], args[2], args[7], args[-1]
    positions = (given if is_transposed else grad).shape[2:].numel()
    return int(sum(wanted[:2]) * 2 * given.shape[0] * positions * weight.numel())


def _pooling(kernel: int | list[int], pooled: torch.Tensor) -> int:
    """One for each place of a window."""
    sides = [kernel] if isinstance(kernel, int) else kernel
    return int(prod(sides) ** ((pooled.dim() - 2) if len(sides) == 1 else 1)) * pooled.numel()


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Two products of matrices: scores, and their product with the values."""
    return 2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _grouped(args: tuple[Any, ...]) -> int:
    """Products of matrices: of each group its rows or columns only, where these are what is divided."""
    left, right = args[:2]
    return int(2 * left.shape[-2:].numel() * right.shape[-1] * (len(left) if left.dim() == right.dim() == 3 else 1))


def _recurrent(args: tuple[Any, ...]) -> int:
    """A layer: at each time step the products of input and hidden state with their weights."""
    source, *weights = args[:3]
    return int(2 * source.shape[:2].numel() * sum(weight.numel() for weight in weights))


_FORMULAS: dict[str, Callable[[tuple[Any, ...]], int]] = {
    "convolution_backward": _convolution_backward,
    "mv": lambda args: 2 * args[0].numel(),
    "addmv": lambda args: 2 * args[1].numel(),
    "dot": lambda args: 2 * args[0].numel(),
    "_scaled_dot_product_flash_attention_for_cpu": lambda args: _attention(*args[:3]),
    # scores once more, and the gradients of the three arguments and of the scores (arXiv 2205.14135)
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda args: _attention(*args[1:4]) * 5 // 2,
    "_grouped_mm": _grouped,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": lambda args: 2 * _recurrent(args),
}
