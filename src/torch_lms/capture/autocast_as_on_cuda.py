"""Autocast on a GPU has other lists than on the CPU of what runs in float32: functions as a GPU has them."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_F: Any = torch.nn.functional

_IN_FLOAT32 = frozenset(
    (
        *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt"),
        *("sinh", "tan", "pow", "__pow__", "__rpow__", "softplus", "layer_norm", "group_norm"),
        *("norm", "dist", "pdist", "cdist", "renorm", "logsumexp", "cosine_similarity", "interpolate"),
        *("prod", "cumprod", "cumsum", "sum"),
    )
)
"""By name, whether of ``torch``, ``torch.Tensor`` or ``torch.nn.functional``. Losses are so on the CPU, too."""

_AS_IT_COMES = frozenset(
    (
        *("avg_pool3d", "max_pool3d", "max_pool3d_with_indices", "adaptive_avg_pool3d", "adaptive_max_pool3d"),
        *("adaptive_max_pool3d_with_indices", "grid_sample", "pad", "cat", "concat", "stack"),
    )
)
"""In float32, or in the widest type of its arguments, on the CPU alone."""

_SOFTMAX = {"softmax": torch.ops.aten._softmax, "log_softmax": torch.ops.aten._log_softmax}

_NARROW = (torch.float16, torch.bfloat16)


def as_autocast_on_cuda(func: Any) -> Any:
    """What to call for ``func`` while autocast is on."""
    name = getattr(func, "__name__", "")
    if func is _F.cross_entropy:
        return _cross_entropy
    if name in _SOFTMAX:
        return _softmax(func)
    if name in _IN_FLOAT32:
        return _in_float32(func)
    if name in _AS_IT_COMES:
        return _without_autocast(func)
    return func


def _without_autocast(func: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return func(*args, **kwargs)

    return call


def _in_float32(func: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        return _without_autocast(func)(*args, **kwargs)

    return call


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _NARROW else value


def _softmax(func: Callable[..., Any]) -> Callable[..., Any]:
    """It reads half precision and gives float32, without a copy between."""
    kernel = _SOFTMAX[func.__name__]

    def call(input: torch.Tensor, dim: int | None = None, *rest: Any, **given: Any) -> Any:
        given.pop("_stacklevel", None)
        has_type = given.get("dtype") is not None or any(isinstance(value, torch.dtype) for value in rest)
        if not isinstance(dim, int) or has_type or input.dtype is not torch.float16:
            return _in_float32(func)(input, dim, *rest, **given)
        with torch.autocast("cpu", enabled=False):
            return kernel(input, dim, True)

    return call


def _cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *rest: Any,
    **given: Any,
) -> torch.Tensor:
    """The logarithm of softmax comes as the scores do, and is widened. The other ways to a loss are the CPU's."""
    settings = {name: value for name, value in given.items() if value}  # reduce=None, label_smoothing=0.0, ...
    loss: torch.Tensor
    if rest or not settings.keys() <= {"ignore_index", "reduction"} or target.is_floating_point():
        loss = _F.cross_entropy(input, target, weight, *rest, **given)
    else:
        with torch.autocast("cpu", enabled=False):
            logarithms = torch.log_softmax(input, 1 if input.dim() > 1 else 0)
            loss = _F.nll_loss(_widened(logarithms), target, weight, **settings)
    return loss
