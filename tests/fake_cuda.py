"""Steps on fake CUDA tensors: what a build of PyTorch for CUDA would do on a GPU, on a machine without one."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def autocast(dtype: torch.dtype) -> Iterator[None]:
    """Autocast for CUDA. ``torch.autocast`` turns itself off where there is no GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)


@torch.no_grad()
def backward(loss: Tensor) -> None:
    """Compute gradients, as ``loss.backward()`` does.

    PyTorch's own engine asks CUDA for its streams, also of tensors without bytes, and fails where there is no GPU.
    """
    first = loss.grad_fn
    assert first is not None
    given: dict[Any, dict[int, Tensor]] = {first: {0: torch.ones_like(loss)}}
    waits_for = Counter(node for edges in map(_edges, _nodes(first)) for node, _ in edges)
    ready = [first]
    while ready:
        node = max(ready, key=lambda one: one._sequence_nr())  # of those that are ready, the youngest: as the engine
        ready.remove(node)
        gradients = given.pop(node, {})
        run = node if callable(node) else node.apply  # one in C++; one in Python
        made = run(*(gradients.get(number) for number in range(len(node._input_metadata)))) if gradients else None
        for (target, number), gradient in zip(node.next_functions, _as_tuple(made, node), strict=False):
            if target is None:
                continue
            if gradient is not None:
                _give(given.setdefault(target, {}), number, _fitted(gradient, target._input_metadata[number]))
            waits_for[target] -= 1
            if not waits_for[target]:
                ready.append(target)


def _edges(node: Any) -> list[tuple[Any, int]]:
    return [(target, number) for target, number in node.next_functions if target is not None]


def _nodes(first: Any) -> list[Any]:
    """All nodes of the graph, each once."""
    found = {first: None}
    waiting = [first]
    while waiting:
        for node, _ in _edges(waiting.pop()):
            if node not in found:
                found[node] = None
                waiting.append(node)
    return list(found)


def _as_tuple(made: Any, node: Any) -> tuple[Tensor | None, ...]:
    """A gradient for each edge, of which a node with one gives no tuple, and one that was not called gives none.

    One in Python gives them for arguments that are no tensors, too, and has them last.
    """
    if isinstance(made, tuple):
        return made
    return (made,) if len(node.next_functions) == 1 else (None,) * len(node.next_functions)


def _fitted(gradient: Tensor, metadata: Any) -> Tensor:
    """``gradient``, of the shape and type of what it is for."""
    if gradient.shape != metadata.shape:
        gradient = gradient.sum_to_size(metadata.shape)
    return gradient if gradient.dtype is metadata.dtype else gradient.to(metadata.dtype)


def _give(gradients: dict[int, Tensor], number: int, gradient: Tensor) -> None:
    gradients[number] = gradients[number] + gradient if number in gradients else gradient
