"""What Keras's PyTorch backend does that PyTorch's own hooks do not see.

Its optimizers are none of `torch.optim`'s: their steps are calls of ``apply`` (N14). `jit_compile=True` would compile
the whole training step, in regions that each must fit on the device with all that they save (N11): it stays eager.
"""

import logging
import weakref
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import torch

from torch_lms.capture.inside import Inside
from torch_lms.capture.patches import Patches
from torch_lms.import_hooks import once_imported

_OPTIMIZERS = "keras.src.optimizers.loss_scale_optimizer"
_MODELS = "keras.src.models.model"

_log = logging.getLogger("torch_lms")


class KerasHooks:
    """Watches the steps of Keras's optimizers, as soon as Keras has been imported.

    Args:
        step: called after each step.
        adopt: called with the tensors of an optimizer, before it first uses them.
    """

    def __init__(self, step: Callable[[], None], adopt: Callable[[list[torch.Tensor]], None]) -> None:
        self._step, self._adopt = step, adopt
        self._adopted: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._inside = Inside()
        self._has_warned = False
        self._patches = Patches()

    def install(self) -> None:
        """Wait for these parts of Keras to be imported: LMS may be turned on while Keras imports PyTorch."""
        self._patches.later(once_imported(_OPTIMIZERS, self._patch_optimizers))
        self._patches.later(once_imported(_MODELS, self._patch_models))

    def uninstall(self) -> None:
        """Put everything back as it was."""
        self._patches.undo()

    def _patch_optimizers(self) -> None:
        module = import_module(_OPTIMIZERS)
        if module.backend.backend() != "torch":
            return
        wrapper = module.LossScaleOptimizer
        for owner in [base for base in wrapper.__mro__ if "apply" in vars(base)]:
            self._patches.replace(owner, "apply", self._watched(owner.apply))

    def _patch_models(self) -> None:
        module = import_module(_MODELS)
        if module.backend.backend() == "torch":
            owner = next(base for base in module.Model.__mro__ if "jit_compile" in vars(base))
            self._patches.replace(owner, "jit_compile", self._eager(owner.jit_compile))

    def _watched(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        inside = self._inside

        @wraps(apply)
        def watched(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if inside.now:  # an optimizer that wraps another, or calls its superclass
                return apply(optimizer, *args, **kwargs)
            self._adopt_from(optimizer)
            with inside.block():
                result = apply(optimizer, *args, **kwargs)
            self._step()
            return result

        return watched

    def _adopt_from(self, optimizer: Any) -> None:
        """Adopt its variables, those that the last step made included."""
        variables = optimizer.variables
        if self._adopted.get(optimizer) != len(variables):
            self._adopted[optimizer] = len(variables)
            self._adopt([variable.value for variable in variables])

    def _eager(self, jit_compile: property) -> property:
        """``jit_compile`` as it is set, but read as False."""

        def get(model: Any) -> bool:
            if jit_compile.__get__(model) and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "jit_compile=True is ignored while LMS is on, and the model runs eagerly: "
                    "a compiled training step has to fit on the device as a whole"
                )
            return False

        return property(get, jit_compile.fset, doc=jit_compile.__doc__)
