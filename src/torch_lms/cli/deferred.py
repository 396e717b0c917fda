"""Acts when a script imports torch, not before.

A script may set ``OMP_NUM_THREADS``, ``CUDA_VISIBLE_DEVICES`` or ``PYTORCH_CUDA_ALLOC_CONF`` and then import torch.
If we imported torch first, the script would run on other threads or another device than under plain ``python``.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from torch_lms.import_hooks import once_imported


def once_torch_is_imported(action: Callable[[], None]) -> None:
    """Call ``action`` right after the first ``import torch`` has succeeded; now, if it already has."""
    once_imported("torch", action)
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _TorchFirst())


class _TorchFirst(MetaPathFinder):
    """Imports torch before the first module of ours.

    Our modules import torch. The action uses them, so none may be half imported when it is called.
    It stays in ``sys.meta_path``, as the finder of ``import_hooks`` does.
    """

    _has_acted = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith("torch_lms.") and not self._has_acted:
            self._has_acted = True
            importlib.import_module("torch")
        return None
