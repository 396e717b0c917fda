"""Cuts operations into parts that fit, with the same bits (N10)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_lms.capture.registry import storage_nbytes
from torch_lms.capture.schema import OpInfo
from torch_lms.capture.tensors import span, untyped_storage

CAT = "aten::cat"
"""Is cut in a way of its own: ``cat``."""

_GRADIENTS_OF_CONVOLUTION = "aten::convolution_backward"
_CONVOLVED, _OUTPUT_MASK = 1, 10
"""Positions among its arguments."""


@dataclass(frozen=True, slots=True)
class Part:
    """One call of several that do the work of one.

    Attributes:
        shape_only: position of an argument of which nothing but the shape is asked; -1 if there is none.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape_only: int = -1


def parts(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], nbytes: Callable[[list[Any]], int], most: int
) -> list[Part]:
    """The calls that take the place of one, in order; one if there is no way to cut it.

    The lists of operators that treat each index by itself are cut into runs of at most ``most`` bytes, or of a single
    index. The gradients of a convolution are computed one after the other, as PyTorch's kernels do anyway: that of the
    weight, with the input; then that of the input, of which the shape is enough.

    Args:
        nbytes: bytes of the storages of some tensors.
        most: bytes that a run may touch.
    """
    if info.list_args:
        return list(_runs(info, args, kwargs, nbytes, most))
    if info.name != _GRADIENTS_OF_CONVOLUTION or len(args) <= _OUTPUT_MASK:
        return [Part(args, kwargs)]
    mask = args[_OUTPUT_MASK]
    if not mask[0] or not any(mask[1:]):
        return [Part(args, kwargs)]
    of_weight = (*args[:_OUTPUT_MASK], [False, *mask[1:]])
    of_input = (*args[:_OUTPUT_MASK], [True, False, False])
    return [Part(of_weight, kwargs), Part(of_input, kwargs, shape_only=_CONVOLVED)]


def slices(info: OpInfo, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Positions of arguments that show a part of their storage, and can be copied out of it one after the other.

    An operation that treats each element by itself, and writes nothing, gives the same on copies.
    """
    if not info.pointwise or info.writes or info.list_args:
        return ()
    return tuple(n for n, value in enumerate(args) if _is_slice(value))


def _is_slice(value: Any) -> bool:
    """Whether it shows a part of its storage, without gaps."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return bool(span(value) == value.numel() < storage_nbytes(untyped_storage(value)) // value.element_size())


def with_copies(args: tuple[Any, ...], slices: tuple[int, ...]) -> tuple[Any, ...]:
    """``args``, with copies of ``slices`` that have the same strides on storages of their own."""
    return tuple(_copied(value) if position in slices else value for position, value in enumerate(args))


def _copied(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def join(info: OpInfo, results: list[Any]) -> Any:
    """One result of the results of all parts."""
    if info.list_args:
        return _joined(results)
    return tuple(next((value for value in found if value is not None), None) for found in zip(*results, strict=True))


def cat(like: torch.Tensor, tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """What ``torch.cat`` gives, by one copy for each tensor. ``like``: the result's shape, strides and type."""
    result = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=tensors[0].device)
    first = 0
    for tensor in tensors:
        if tensor.shape != (0,):  # which fits to all, by tradition
            result.narrow(dim, first, tensor.shape[dim]).copy_(tensor)
            first += tensor.shape[dim]
    return result


def _runs(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], nbytes: Callable[[list[Any]], int], most: int
) -> Iterator[Part]:
    length = len(args[info.list_args[0]])
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple) and len(value) == length]
    at_index = [nbytes([values[index] for values in lists]) for index in range(length)]
    first, held = 0, 0
    for index, size in enumerate(at_index):
        if index > first and held + size > most:
            yield _run(args, kwargs, length, first, index)
            first, held = index, 0
        held += size
    yield _run(args, kwargs, length, first, length)


def _run(args: tuple[Any, ...], kwargs: dict[str, Any], length: int, first: int, end: int) -> Part:
    def cut(value: Any) -> Any:
        return value[first:end] if isinstance(value, list | tuple) and len(value) == length else value

    return Part(tuple(cut(value) for value in args), {name: cut(value) for name, value in kwargs.items()})


def _joined(results: list[Any]) -> Any:
    """Lists are joined, tuples of lists position by position."""
    if results[0] is None:
        return None
    if isinstance(results[0], tuple):
        return tuple(_joined(list(part)) for part in zip(*results, strict=True))
    return [value for result in results for value in result]
