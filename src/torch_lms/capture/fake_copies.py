"""Copies of modules and tensors that have no bytes."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree


def held_tensors(leaves: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among ``leaves``, and the parameters and buffers of modules there."""
    found: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.nn.Module):
            found += [*leaf.parameters(), *leaf.buffers()]
        elif isinstance(leaf, torch.Tensor):
            found.append(leaf)
    return found


def mode_of(values: Any) -> FakeTensorMode | None:
    """The mode in which the tensors among ``values`` were made that have no bytes already; None if all have."""
    for tensor in held_tensors(pytree.tree_leaves(values)):
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode
    return None


def without_bytes(values: Any, mode: FakeTensorMode) -> Any:
    """Copies of ``values`` in which tensors have no bytes; those that have none already are taken as they are."""
    leaves, shape = pytree.tree_flatten(values)
    copied: dict[int, Any] = {}
    with FakeCopyMode(mode):
        return pytree.tree_unflatten([_without_bytes(leaf, copied) for leaf in leaves], shape)


def _without_bytes(leaf: Any, copied: dict[int, Any]) -> Any:
    """A copy of ``leaf``. ``copied``: those made so far, by the id of the original: one that is given twice is one."""
    if not isinstance(leaf, torch.Tensor | torch.nn.Module):
        return leaf
    held = held_tensors([leaf])
    if held and all(isinstance(tensor, FakeTensor) for tensor in held):
        return leaf
    if id(leaf) not in copied:
        copied[id(leaf)] = deepcopy(leaf)
    return copied[id(leaf)]
