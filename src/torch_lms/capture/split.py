"""Splits operations that are too large into parts that fit, with the same bits (N10).

How an operation is split is said once, by ``program``. The dispatch mode runs the program; ``trace_step`` records it.
A program is a generator: it yields one instruction after the other, is sent the result of each, and returns the result
of the whole operation. ``perform`` drives it.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_lms.capture.registry import storage_nbytes
from torch_lms.capture.schema import OpInfo, describe
from torch_lms.capture.sizes import on_meta
from torch_lms.capture.tensors import span, untyped_storage

_CAT = "aten::cat"

_GRADIENTS_OF_CONVOLUTION = "aten::convolution_backward"
_CONVOLVED = 1
"""Position among its arguments: the input."""
_OUTPUT_MASK = 10
"""Position among its arguments: which of the gradients of input, weight and bias are wanted."""

RUNS = 8
"""A list that is treated index by index is split into runs of at most this part of the limit. So the pages of the next
run can come, and those of the last leave, while one is computed."""

_EMPTY_BY_TRADITION = (0,)
"""The shape of an empty tensor that ``cat`` takes beside tensors of any other shape."""


@dataclass(frozen=True, slots=True)
class Part:
    """A call of the operator itself that does a part of its work.

    The mode runs it directly. If it were dispatched again, it might be split again.

    Attributes:
        shape_only: position of an argument of which nothing but the shape is asked; -1 if there is none.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape_only: int = -1


@dataclass(frozen=True, slots=True)
class Empty:
    """Memory for copies. A trace counts it as made by the first copy into it.

    Attributes:
        like: has the shape, the strides and the type, on whatever device.
    """

    like: torch.Tensor
    device: torch.device

    def run(self) -> torch.Tensor:
        """Allocate it."""
        like = self.like
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of one tensor into another.

    Attributes:
        dim: dimension of ``target`` along which ``source`` has a place; None if it fills all of it.
        first: where in that dimension its place begins.
    """

    source: torch.Tensor
    target: torch.Tensor
    dim: int | None = None
    first: int = 0

    def run(self) -> None:
        """Copy ``source`` to its place."""
        if self.dim is None:
            self.target.copy_(self.source)
        elif self.source.shape != _EMPTY_BY_TRADITION:
            place = self.target.narrow(self.dim, self.first, self.source.shape[self.dim])
            place.copy_(self.source)

    @property
    def recorded_as(self) -> tuple[Any, tuple[Any, ...]]:
        """The operator, and its arguments, that stand in a trace for this copy."""
        if self.dim is None:
            return torch.ops.aten.clone.default, (self.source,)
        return torch.ops.aten.cat.default, ([self.source],)


@dataclass(frozen=True, slots=True)
class OnCopies:
    """The whole operation, once parts of large storages have been copied out of these."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Call the operator on them."""
        return self.func(*self.args, **self.kwargs)


Instruction = Part | Empty | Copy | OnCopies
"""All but a ``Part`` are operations of their own: they are dispatched again, as if the user's program called them."""

Program = Generator[Instruction, Any, Any]


def program(
    func: Any,
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    nbytes: Callable[[list[Any]], int],
    most: int,
) -> Program | None:
    """Instructions that take the place of ``func(*args, **kwargs)``; None if there is no way to split it.

    Args:
        nbytes: bytes of the storages of some tensors.
        most: bytes that a run of the lists of an operator may touch.
    """
    if info.name == _CAT:
        return _cat(func, *args, **kwargs)
    if positions := _slices(info, args):
        return _on_copies(func, args, kwargs, positions)
    if not info.list_args:
        return gradients(func, info, args, kwargs)
    runs = list(_runs(func, info, args, kwargs, nbytes, most))
    return _one_by_one(info, runs) if len(runs) > 1 else None


def perform(program: Program, run: Callable[[Instruction], Any]) -> Any:
    """Have ``run`` do each instruction of ``program``, and return the result of the whole."""
    result = None
    while True:
        try:
            instruction = program.send(result)
        except StopIteration as end:
            return end.value
        result = run(instruction)


def _cat(func: Any, tensors: list[torch.Tensor], dim: int = 0) -> Program:
    """What ``torch.cat`` gives, by one copy for each tensor."""
    like = on_meta(func, describe(func), (tensors, dim), {})
    result = yield Empty(like, tensors[0].device)
    first = 0
    for tensor in tensors:
        yield Copy(tensor, result, dim, first)
        if tensor.shape != _EMPTY_BY_TRADITION:
            first += tensor.shape[dim]
    return result


def _on_copies(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], positions: tuple[int, ...]) -> Program:
    """The same on copies of the arguments at ``positions``, which have their strides on storages of their own."""
    copied = list(args)
    for position in positions:
        source = args[position]
        target = yield Empty(source, source.device)
        yield Copy(source, target)
        copied[position] = target
    result = yield OnCopies(func, tuple(copied), kwargs)
    return result


def _slices(info: OpInfo, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Positions of arguments that show a part of their storage, and can be copied out of it one after the other.

    An operation that treats each element by itself, and writes nothing, gives the same on copies.
    """
    if not info.pointwise or info.writes or info.list_args:
        return ()
    return tuple(position for position, value in enumerate(args) if _is_slice(value))


def _is_slice(value: Any) -> bool:
    """Whether it shows a part of its storage, without gaps."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    elements = value.numel()
    elements_of_storage = storage_nbytes(untyped_storage(value)) // value.element_size()
    return bool(span(value) == elements < elements_of_storage)


def gradients(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program | None:
    """The gradients of a convolution, one after the other, as PyTorch's kernels compute them anyway; None if ``func``
    computes none.

    First that of the weight, with the input; then that of the input, of which the shape is enough.
    """
    if info.name != _GRADIENTS_OF_CONVOLUTION or len(args) <= _OUTPUT_MASK:
        return None
    mask = args[_OUTPUT_MASK]
    of_weight = Part(func, (*args[:_OUTPUT_MASK], [False, *mask[1:]]), kwargs)
    of_input = Part(func, (*args[:_OUTPUT_MASK], [True, False, False]), kwargs, shape_only=_CONVOLVED)
    if not mask[0]:
        return None
    return _one_by_one(info, [of_weight, of_input] if any(mask[1:]) else [of_input])


def _runs(
    func: Any,
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    nbytes: Callable[[list[Any]], int],
    most: int,
) -> Iterator[Part]:
    length = len(args[info.list_args[0]])
    lists = [value for value in (*args, *kwargs.values()) if _has_length(value, length)]
    begin = 0
    held = 0  # bytes of the indices from ``begin`` on
    for index in range(length):
        size = nbytes([values[index] for values in lists])
        if index > begin and held + size > most:
            yield _run(func, args, kwargs, length, slice(begin, index))
            begin = index
            held = 0
        held += size
    yield _run(func, args, kwargs, length, slice(begin, length))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], length: int, indices: slice) -> Part:
    """The call on those ``indices`` of all lists that have ``length``."""
    run_args = [value[indices] if _has_length(value, length) else value for value in args]
    run_kwargs = {name: value[indices] if _has_length(value, length) else value for name, value in kwargs.items()}
    return Part(func, tuple(run_args), run_kwargs)


def _has_length(value: Any, length: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == length


def _one_by_one(info: OpInfo, found: list[Part]) -> Program:
    """One part after the other, and their results joined as the operator would give them."""
    results = []
    for part in found:
        results.append((yield part))
    if info.list_args:
        return _joined_lists(results)
    return _first_given(results)


def _joined_lists(results: list[Any]) -> Any:
    """Lists are joined, tuples of lists position by position."""
    if results[0] is None:
        return None
    if isinstance(results[0], tuple):
        return tuple(_joined_lists(list(lists)) for lists in zip(*results, strict=True))
    return [value for result in results for value in result]


def _first_given(results: list[Any]) -> tuple[Any, ...]:
    """At each position the first result that is not None: each part gives some of them, and None for the others."""
    joined = []
    for candidates in zip(*results, strict=True):
        given = [value for value in candidates if value is not None]
        joined.append(given[0] if given else None)
    return tuple(joined)
