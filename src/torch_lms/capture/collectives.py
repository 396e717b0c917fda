"""Collectives go on after their operation has returned, and touch their tensors meanwhile (N11)."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_lms.capture.patches import Call, Patches

_WORK = "__torch__.torch.classes.c10d.Work"

IsOver = Callable[[], bool]


class _Batch:
    """Collectives that were coalesced: they end together."""

    def __init__(self) -> None:
        self._is_closed = False
        self._work: Any = None

    def close(self, work: Any) -> None:
        """All were given, and ``work`` tells when they have ended; None: they ran on the caller's stream."""
        self._is_closed = True
        self._work = work

    def is_over(self) -> bool:
        """Whether they have ended."""
        if not self._is_closed:
            return False
        return self._work is None or bool(self._work.is_completed())


_open = threading.local()
"""The batch that this thread is filling, as ``batch``."""

_waited: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Works that somebody has waited for. Some of gloo's never say that they have ended, as that of a reduce-scatter."""


class Collectives:
    """Notices what PyTorch tells nobody: where batches of collectives begin and end, and who was waited for."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Watch the process groups, and their works."""
        if torch.distributed.is_available():
            group = torch._C._distributed_c10d.ProcessGroup
            self._patches.around(group, "_start_coalescing", self._starting)
            self._patches.around(group, "_end_coalescing", self._ending)
            self._patches.around(torch._C._distributed_c10d.Work, "wait", self._waiting)

    def uninstall(self) -> None:
        """Put everything back as it was."""
        self._patches.undo()

    def _starting(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        started = call(*args, **kwargs)
        _open.batch = _Batch()
        return started

    def _ending(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        work = call(*args, **kwargs)
        batch = getattr(_open, "batch", None)
        _open.batch = None
        if batch is not None:
            batch.close(work)
        return work

    def _waiting(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        _waited.add(args[0])
        return result


def finish_of(result: Any) -> IsOver | None:
    """Tells whether the collective that returned ``result`` has ended; None if it has.

    Some hand out a work that tells, or that has ended on the host once it was waited for. One without ran on the
    caller's stream, as NCCL's do that are not asynchronous, or belongs to a batch. A functional collective hands out
    nothing that tells, so it is waited for at once.
    """
    leaves = pytree.tree_leaves(result)
    works = [leaf for leaf in leaves if isinstance(leaf, torch.ScriptObject) and leaf._type().qualified_name() == _WORK]
    pending = [work for work in map(torch._C._distributed_c10d.Work.unbox, works) if work is not None]
    if pending:
        is_on_host = all(leaf.is_cpu for leaf in leaves if isinstance(leaf, torch.Tensor))
        return lambda: all(work.is_completed() or (is_on_host and work in _waited) for work in pending)
    if works:
        batch: _Batch | None = getattr(_open, "batch", None)
        if batch is None:
            return None
        return batch.is_over
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            torch.ops._c10d_functional.wait_tensor.default(leaf)
    return None
