"""A call of an operator with its arguments by name, so that some can be replaced (N27)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torch_lms.capture.schema import describe


@dataclass(frozen=True, slots=True)
class Fixed:
    """An argument that each piece is given as it is, and of whose numbers nothing depends."""

    value: Any

    def __repr__(self) -> str:
        tensors = self.value if isinstance(self.value, list | tuple) else [self.value]
        return str([(tuple(tensor.shape), tensor.dtype) for tensor in tensors])


def bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the operator's schema, defaults included."""
    found = {}
    for place, argument in enumerate(func._schema.arguments):
        if place < len(args):
            found[argument.name] = args[place]
        else:
            found[argument.name] = kwargs.get(argument.name, argument.default_value)
    return found


def of_one_index(func: Any, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of an operator on lists, with the tensor instead of each list of one; single numbers are ``Fixed``.
    None if a list has several, or a tensor that is in none.
    """
    lists = describe(func).list_args
    found = dict(given)
    for position, (name, value) in enumerate(given.items()):
        if position in lists:
            if len(value) > 1:
                return None
            found[name] = value[0] if value and value[0].dim() else Fixed(value)
        elif isinstance(value, torch.Tensor):
            if value.numel() != 1:
                return None
            found[name] = Fixed(value)
    return found


def unbind(func: Any, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The other way: arguments by place, and by keyword where the schema has it so."""
    lists = describe(func).list_args
    args, kwargs = [], {}
    for position, argument in enumerate(func._schema.arguments):
        value = given[argument.name]
        if isinstance(value, Fixed):
            value = value.value
        elif position in lists:
            value = [value]
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def called(func: Any, given: Mapping[str, Any]) -> list[Any]:
    """What a call gives; what it wrote, if it gives nothing."""
    args, kwargs = unbind(func, given)
    result = func(*args, **kwargs)
    return as_results(result) if func._schema.returns else list(written_by(func, given).values())


def written_by(func: Any, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that a call writes."""
    return {name: given[name] for _, name in describe(func).writes if isinstance(given[name], torch.Tensor)}


def tensors_of(given: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The arguments that are tensors."""
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            yield name, value


def as_results(result: Any) -> list[Any]:
    """What a call gave, as a list."""
    return list(result) if isinstance(result, tuple | list) else [result]
