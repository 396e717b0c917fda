"""Collectives go on after their operation has returned, and touch their tensors meanwhile (N11)."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_WORK = "__torch__.torch.classes.c10d.Work"


def finish_of(result: Any) -> Callable[[], bool]:
    """Tells whether the collective that returned ``result`` has ended.

    A functional collective hands out nothing that tells, so it is waited for at once.
    """
    leaves = pytree.tree_leaves(result)
    works = [leaf for leaf in leaves if isinstance(leaf, torch.ScriptObject) and leaf._type().qualified_name() == _WORK]
    if works:
        pending = [torch._C._distributed_c10d.Work.unbox(work) for work in works]
        return lambda: all(work.is_completed() for work in pending)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            torch.ops._c10d_functional.wait_tensor.default(leaf)
    return lambda: True
