"""A call of an operator with its arguments by name, so that some can be replaced (N27)."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the operator's schema, defaults included."""
    found = {}
    for place, argument in enumerate(func._schema.arguments):
        if place < len(args):
            found[argument.name] = args[place]
        else:
            found[argument.name] = kwargs.get(argument.name, argument.default_value)
    return found


def unbind(func: Any, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The other way: arguments by place, and by keyword where the schema has it so."""
    arguments = func._schema.arguments
    args = tuple(given[argument.name] for argument in arguments if not argument.kwarg_only)
    return args, {argument.name: given[argument.name] for argument in arguments if argument.kwarg_only}


def tensors_of(given: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The arguments that are tensors."""
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            yield name, value


def as_results(result: Any) -> list[Any]:
    """What a call gave, as a list."""
    return list(result) if isinstance(result, tuple | list) else [result]
