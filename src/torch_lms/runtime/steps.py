"""Where one training step ends and the next begins (N14)."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class StepHooks:
    """Calls ``step`` after each optimizer step, and after the outermost module's forward where nothing is recorded.

    Args:
        step: called at each boundary.
        adopt: called with the tensors that a module or an optimizer owns, before it first uses them.
    """

    def __init__(self, step: Callable[[], None], adopt: Callable[[list[torch.Tensor]], None]) -> None:
        self._step, self._adopt = step, adopt
        self._depth = threading.local()
        self._handles: list[Any] = []
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Register the hooks."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
            register_module_forward_pre_hook(self._before_forward),
            register_module_forward_hook(self._after_forward, always_call=True),
        ]

    def uninstall(self) -> None:
        """Remove them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_optimizer(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if optimizer not in self._known:
            self._known.add(optimizer)
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            states = [value for state in optimizer.state.values() for value in state.values()]
            self._adopt([value for value in (*parameters, *states) if isinstance(value, torch.Tensor)])

    def _after_optimizer(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._step()

    def _before_forward(self, module: torch.nn.Module, _args: Any) -> None:
        self._depth.now = getattr(self._depth, "now", 0) + 1
        if self._depth.now == 1 and module not in self._known:
            self._known.add(module)
            self._adopt(list(module.parameters()))

    def _after_forward(self, _module: torch.nn.Module, _args: Any, _result: Any) -> None:
        self._depth.now = max(0, getattr(self._depth, "now", 0) - 1)
        if self._depth.now == 0 and not torch.is_grad_enabled():
            self._step()
