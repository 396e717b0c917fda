"""Optimizers that PyTorch does not know: they may have functions in C++ write what no operation shows (N4)."""

import inspect
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch
from torch.optim.optimizer import Optimizer
from torch.utils import _pytree as pytree

from torch_lms.engine import Engine
from torch_lms.residency import PageId

Tensors = list[torch.Tensor]


class Seen:
    """What operations wrote while others may have written, too.

    Args:
        pages: tells which pages tensors are.
        expected: those that will be written.

    Attributes:
        written: pages.
        held: until this is closed what others may write stays on the device.
        held_bytes: of that, by device.
    """

    def __init__(self, pages: Callable[[Tensors], set[PageId]], expected: set[PageId]) -> None:
        self._pages = pages
        self._expected = expected
        self.written: set[PageId] = set()
        self.held = ExitStack()
        self.held_bytes: dict[Engine, int] = {}

    @property
    def is_all(self) -> bool:
        """Whether that is all that was expected, and that something was."""
        return bool(self._expected) and self._expected <= self.written

    def are_among(self, tensors: Tensors) -> bool:
        """Whether all of ``tensors`` were written."""
        return self._pages(tensors) <= self.written

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
    taken for written, until one is seen to write its state, too.

    Args:
        suspect: inside of it tensors may be written unseen. Is told which, whose writes are expected, and whether to
            hold all of them.
    """

    def __init__(self, suspect: Suspect) -> None:
        self._suspect = suspect
        self._harmless: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._step = ExitStack()

    def begins(self, optimizer: Optimizer) -> None:
        """A step of ``optimizer`` begins; one that was not ended has failed."""
        self._step.close()
        if optimizer in self._known or _is_of_pytorch(optimizer):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.Tensor)]
        updated = [parameter for parameter in parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in updated if parameter.grad is not None]
        tensors = [*parameters, *gradients, *state_of(optimizer)]
        seen = self._step.enter_context(self._suspect(tensors, updated, optimizer not in self._harmless))
        self._step.callback(self._conclude, weakref.ref(optimizer), seen)

    def ends(self) -> None:
        """It has ended."""
        self._step.close()

    def _conclude(self, optimizer: weakref.ref[Optimizer], seen: Seen) -> None:
        known = optimizer()
        if known is None or not seen.is_all:
            return
        self._harmless.add(known)
        if seen.are_among(state_of(known)):
            self._known.add(known)


def state_of(optimizer: Optimizer) -> Tensors:
    """The tensors in its state, those in lists and dictionaries there included."""
    return [leaf for leaf in pytree.tree_leaves(list(optimizer.state.values())) if isinstance(leaf, torch.Tensor)]


def _is_of_pytorch(optimizer: Optimizer) -> bool:
    """Whether its step is PyTorch's own: operations all."""
    return str(getattr(inspect.unwrap(type(optimizer).step), "__module__", "")).startswith("torch.")
