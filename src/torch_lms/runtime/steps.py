"""Where one training step ends and the next begins (N14)."""

import sys
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

import torch
from torch.autograd import Variable
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torch_lms.capture.optimizer_runs import OptimizerRuns
from torch_lms.runtime.backward_passes import BackwardPasses
from torch_lms.runtime.foreign import ForeignOptimizers, Suspect, state_of
from torch_lms.runtime.keras_hooks import KerasHooks

_NO_PASS = -1
"""PyTorch's number of the backward pass where there is none."""

_PATIENCE = 8
"""So many rounds without the step of an optimizer, or calls without a backward pass, and each of them is a step."""

_STEP = Optimizer.profile_hook_step(Optimizer.step).__code__
"""What PyTorch runs for the step of any optimizer: its own around it, hooks included."""


class StepHooks:
    """Calls ``step`` after each optimizer step, and after the outermost module's forward where nothing is recorded, if
    the module has parameters and pages took part. Where an optimizer evaluates its closure again and again, as
    ``LBFGS`` does, a step ends before each evaluation but the first. What is part of another optimizer's step, that of
    its superclass or of an optimizer that it has, ends none. Optimizers that step in a backward pass, one for each
    parameter, make one step together: that ends with the pass. So do modules of which several are called in turns, as
    layers that no other module holds together: that ends where one of them is called again.

    Programs that have no optimizer, as those that update by hand or only ask for gradients, go in rounds: a module's
    forward, and a backward pass. When there were several, each is a step, which ends where the next forward begins; or
    with the pass, if the program calls no module that has parameters. An optimizer that steps all the same has
    accumulated gradients: from then on, twice as many rounds are waited for. So it is with calls of a module for which
    gradients are recorded, and no backward pass comes.

    Args:
        step: called at each boundary.
        adopt: called with the tensors that a module or an optimizer owns, before it first uses them.
        uses: tells how often pages were used so far.
        suspect: inside of it tensors may be written unseen (see ``ForeignOptimizers``).
        limit_of: the limit of a device (see ``OptimizerRuns``).
    """

    def __init__(
        self,
        step: Callable[[], None],
        adopt: Callable[[list[torch.Tensor]], None],
        uses: Callable[[], int],
        suspect: Suspect,
        limit_of: Callable[[torch.device], int | None],
    ) -> None:
        self._step, self._adopt, self._uses = step, adopt, uses
        self._runs = OptimizerRuns(limit_of)
        self._foreign = ForeignOptimizers(suspect)
        self._keras = KerasHooks(step, adopt)
        self._passes = BackwardPasses(self._after_pass)
        self._handles: list[Any] = []
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._ends_with = _NO_PASS  # that a step ends with
        self._called: set[int] = set()  # modules, in this step, which did not end with them
        self._called_before: set[int] | None = None  # the same, in the last step in which any was
        self._is_passed = False  # a backward pass ended since a module was called
        self._recorded: set[int] = set()  # modules that were called since then, or since a round ended
        self._rounds, self._calls = _Patience(), _Patience()
        self._has_modules = False  # that have parameters, and for which gradients were recorded
        self._is_found = False  # the end of this step, by calls of modules: no optimizer made it

    def install(self) -> None:
        """Register the hooks."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
        self._call = torch.nn.Module.__call__
        torch.nn.Module.__call__ = self._watched(self._call)  # type: ignore[method-assign]
        self._load = Optimizer.load_state_dict
        Optimizer.load_state_dict = self._adopting(self._load)  # type: ignore[method-assign]
        self._keras.install()
        self._passes.install()

    def uninstall(self) -> None:
        """Remove them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        torch.nn.Module.__call__ = self._call  # type: ignore[method-assign]
        Optimizer.load_state_dict = self._load  # type: ignore[method-assign]
        self._keras.uninstall()
        self._passes.uninstall()

    def step_ended(self) -> None:
        """A step ended, whoever has said so."""
        if self._called:
            self._called_before, self._called = self._called, set()
        if not self._is_found:
            self._rounds.came()
            self._calls.came()
        self._begin_round()

    def settle(self) -> None:
        """Let go of what a failed step of an optimizer holds."""
        self._foreign.ends()

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._adopt([p for group in optimizer.param_groups for p in group["params"]])
            self._adopt(state_of(optimizer))
        if not _is_within_another():
            self._foreign.begins(optimizer)
            if len(args) > 1:
                args = (optimizer, self._in_steps(args[1]), *args[2:])
            if "closure" in kwargs:
                kwargs = {**kwargs, "closure": self._in_steps(kwargs["closure"])}
        return (self._runs.split(optimizer), *args[1:]), kwargs

    def _in_steps(self, closure: Any) -> Any:
        """``closure``, for one call of an optimizer's ``step``: each evaluation but the first begins a step."""
        if not callable(closure):
            return closure
        is_first = True

        @wraps(closure)
        def evaluated(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_first
            if not is_first:
                self._step()
            is_first = False
            return closure(*args, **kwargs)

        return evaluated

    def _after_optimizer(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if _is_within_another():
            return
        self._foreign.ends()
        backward = torch._C._current_graph_task_id()
        if backward == _NO_PASS:
            self._step()
        elif backward != self._ends_with:
            self._ends_with = backward
            Variable._execution_engine.queue_callback(self._step)

    def _adopting(self, load: Callable[..., None]) -> Callable[..., None]:
        """``load``, with the state adopted that it gives an optimizer: of a mapped file, it could not leave else."""

        @wraps(load)
        def adopting(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            load(optimizer, *args, **kwargs)
            self._adopt(state_of(optimizer))

        return adopting

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, with its outermost activation noticed. Hooks for all modules would do, and slow every call down.

        The module is called ``self``, as in what this stands for: PyTorch's profiler looks for it by that name, and
        another could be one of ``kwargs``.
        """
        hooks, inside = self, threading.local()

        @wraps(call)
        def watched(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or getattr(inside, "now", False):
                return call(self, *args, **kwargs)
            uses = hooks._before_module(self)
            inside.now = True
            try:
                return call(self, *args, **kwargs)
            finally:
                inside.now = False
                hooks._after_module(self, uses)

        return watched

    def _before_module(self, module: torch.nn.Module) -> int:
        """Before the outermost ``module`` is called. How often pages were used so far."""
        if module not in self._known:
            self._known.add(module)
            self._adopt(list(module.parameters()))
        if not torch.is_grad_enabled():
            if id(module) in self._called and not _is_in_autograd():
                self._end_found()
        elif not _is_in_autograd():
            if (self._is_passed or id(module) in self._recorded) and _has_parameters(module):
                self._round_ended()
            self._recorded.add(id(module))
            self._has_modules = self._has_modules or _has_parameters(module)
        return self._uses()

    def _after_pass(self) -> None:
        self._is_passed = True
        self._calls.came()
        if not self._has_modules and not _is_in_autograd():
            self._round_ended()

    def _round_ended(self) -> None:
        waited_for = self._rounds if self._is_passed else self._calls
        if waited_for.is_over():
            self._end_found()
        self._begin_round()

    def _end_found(self) -> None:
        self._is_found = True
        try:
            self._step()
        finally:
            self._is_found = False

    def _begin_round(self) -> None:
        self._is_passed = False
        self._recorded.clear()

    def _after_module(self, module: torch.nn.Module, uses_before: int) -> None:
        if not torch.is_grad_enabled() and self._is_step(module, uses_before):
            self._was_called(module)

    def _was_called(self, module: torch.nn.Module) -> None:
        """The step ends with the call of ``module``, if the last did, and no other module was called in this one."""
        is_alone = not self._called and self._called_before in (None, {id(module)})
        self._called.add(id(module))
        if is_alone:
            self._end_found()

    def _is_step(self, module: torch.nn.Module, uses: int) -> bool:
        """Whether a call of ``module``, for which nothing was recorded, was a step. ``uses``: of pages before."""
        return self._uses() > uses and _has_parameters(module) and not _is_in_autograd()


class _Patience:
    """Waits for what ends a step, until it has not come for long; and longer from then on, if it comes."""

    def __init__(self) -> None:
        self._waited = 0
        self._longest = _PATIENCE

    def is_over(self) -> bool:
        """Whether, once more, it has not come, and will not be waited for."""
        self._waited += 1
        return self._waited >= self._longest

    def came(self) -> None:
        """It has come."""
        self._longest = max(self._longest, 2 * self._waited)
        self._waited = 0


def _is_within_another() -> bool:
    """Whether the step of an optimizer whose hook asks is part of another's."""
    steps = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and steps < 2:
        steps += frame.f_code is _STEP
        frame = frame.f_back
    return steps > 1


def _is_in_autograd() -> bool:
    """Whether a backward pass runs, or the forward of an ``autograd.Function``, as of a checkpoint. Nothing is recorded
    there, and yet it belongs to a training step.
    """
    if torch._C._current_graph_task_id() != _NO_PASS:
        return True
    # Such a forward switches forward-mode derivatives off. So does inference mode, and nothing else that is common.
    return not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()


def _has_parameters(module: torch.nn.Module) -> bool:
    """Whether it is a model: transforms of data and metrics are modules, too."""
    return next(module.parameters(), None) is not None
