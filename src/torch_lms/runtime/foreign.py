"""Optimizers that PyTorch does not know: they may have functions in C++ write what no operation shows (N4)."""

import inspect
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch
from torch.optim.optimizer import Optimizer

from torch_lms.engine import Engine
from torch_lms.residency import PageId

Tensors = list[torch.Tensor]


class Seen:
    """What operations wrote while others may have written, too.

    Args:
        expected: pages that will be written.

    Attributes:
        written: pages.
        held: until this is closed what others may write stays on the device.
        held_bytes: of that, by device.
    """

    def __init__(self, expected: set[PageId]) -> None:
        self._expected = expected
        self.written: set[PageId] = set()
        self.held = ExitStack()
        self.held_bytes: dict[Engine, int] = {}

    @property
    def is_all(self) -> bool:
        """Whether that is all that was expected, and that something was."""
        return bool(self._expected) and self._expected <= self.written

    def begins(self, engine: Engine, nbytes: int) -> None:
        """An operation needs ``nbytes`` beside what is held, which is let go of where there is no room for both."""
        if self.held_bytes.get(engine, 0) + nbytes > engine.pager.limit:
            self.held_bytes.clear()
            self.held.close()


Suspect = Callable[[Tensors, Tensors, bool], AbstractContextManager[Seen]]


class ForeignOptimizers:
    """Watches their steps.

    Until one of its steps is seen to write every parameter by operations, all that such an optimizer has is held
    during its steps, as long as that fits beside what its operations need: functions in C++ find it there. And all is
    taken for written.

    Args:
        suspect: inside of it tensors may be written unseen. Is told which, whose writes are expected, and whether to
            hold all of them.
    """

    def __init__(self, suspect: Suspect) -> None:
        self._suspect = suspect
        self._harmless: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._step = ExitStack()

    def begins(self, optimizer: Optimizer) -> None:
        """A step of ``optimizer`` begins; one that was not ended has failed."""
        self._step.close()
        if _is_known(optimizer):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.Tensor)]
        updated = [parameter for parameter in parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in updated if parameter.grad is not None]
        states = [value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values()]
        tensors = [*parameters, *gradients, *(value for value in states if isinstance(value, torch.Tensor))]
        seen = self._step.enter_context(self._suspect(tensors, updated, optimizer not in self._harmless))
        self._step.callback(self._conclude, weakref.ref(optimizer), seen)

    def ends(self) -> None:
        """It has ended."""
        self._step.close()

    def _conclude(self, optimizer: weakref.ref[Optimizer], seen: Seen) -> None:
        known = optimizer()
        if known is not None and seen.is_all:
            self._harmless.add(known)


def _is_known(optimizer: Optimizer) -> bool:
    """Whether its step is PyTorch's own: operations all."""
    return str(getattr(inspect.unwrap(type(optimizer).step), "__module__", "")).startswith("torch.")
