"""Cuts operations on lists of tensors into runs that fit (N10)."""

from collections.abc import Callable, Iterator
from typing import Any

from torch_lms.capture.schema import OpInfo


def runs(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], nbytes: Callable[[list[Any]], int], most: int
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of each run, in order; every run's tensors have at most ``most`` bytes, or it is a single index.

    Args:
        info: of an operator with ``list_args``.
        nbytes: bytes of the storages of some tensors.
        most: bytes that a run may touch.
    """
    length = len(args[info.list_args[0]])
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple) and len(value) == length]
    at_index = [nbytes([values[index] for values in lists]) for index in range(length)]
    first, held = 0, 0
    for index, size in enumerate(at_index):
        if index > first and held + size > most:
            yield _cut(args, kwargs, length, first, index)
            first, held = index, 0
        held += size
    yield _cut(args, kwargs, length, first, length)


def join(results: list[Any]) -> Any:
    """One result of the results of all runs: lists are joined, tuples of lists position by position."""
    if results[0] is None:
        return None
    if isinstance(results[0], tuple):
        return tuple(join(list(part)) for part in zip(*results, strict=True))
    return [value for result in results for value in result]


def _cut(
    args: tuple[Any, ...], kwargs: dict[str, Any], length: int, first: int, end: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def part(value: Any) -> Any:
        return value[first:end] if isinstance(value, list | tuple) and len(value) == length else value

    return tuple(part(value) for value in args), {name: part(value) for name, value in kwargs.items()}
