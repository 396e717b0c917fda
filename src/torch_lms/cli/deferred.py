"""Act when a script imports torch, not before.

A script may set ``OMP_NUM_THREADS``, ``CUDA_VISIBLE_DEVICES`` or ``PYTORCH_CUDA_ALLOC_CONF`` and then import torch.
If we imported torch first, the script would run on other threads or another device than under plain ``python``.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def once_torch_is_imported(action: Callable[[], None]) -> None:
    """Call ``action`` right after the first ``import torch`` has succeeded; now, if it already has."""
    if "torch" in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _TorchWatcher(action))


class _TorchWatcher(MetaPathFinder):
    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith("torch_lms."):
            # Its modules import torch. The action uses them, so none may be half imported when it is called.
            importlib.import_module("torch")
        return self._watched() if name == "torch" else None

    def _watched(self) -> ModuleSpec | None:
        """Where torch is, as the other finders say, with a loader that calls the action when it has loaded it."""
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            load = loader.exec_module

            def load_and_act(module: ModuleType) -> None:
                load(module)
                del loader.exec_module  # back to the class's
                sys.meta_path.remove(self)
                self._action()

            loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
