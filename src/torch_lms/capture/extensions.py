"""Functions of other libraries, in C++, that are given tensors: what they read and write shows no operation (N11)."""

import gc
import re
from collections.abc import Callable, Iterator
from functools import wraps
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any

from torch_lms.capture.patches import Around, Patched, Patches

_NOT_FOREIGN = ("torch.", "torch_lms")
"""How the names of modules begin that are PyTorch's or ours."""

_HAS_TENSORS = re.compile(r"(?:: |-> )[^,()]*\b(?:torch\.|at::)Tensor\b")
"""In the signature that pybind11 writes at the head of a function's documentation."""


class Extensions:
    """Patches the functions and methods of extension modules whose signatures have tensors.

    Modules are found as they are loaded, and those that are there already. Some stand in no table: `load_inline` makes
    such, so they are looked for among all objects.

    Args:
        call: done around each call of a function or method.
        make: done around each construction of an object, which may keep what it is given.
    """

    def __init__(self, call: Around, make: Around) -> None:
        self._call = call
        self._make = make
        self._patches = Patches()

    def install(self) -> None:
        """Patch what is there, and what comes."""
        for module in [found for found in gc.get_objects() if type(found) is ModuleType]:
            if isinstance(getattr(vars(module).get("__spec__"), "loader", None), ExtensionFileLoader):
                self._patch(module)
        load = ExtensionFileLoader.exec_module

        @wraps(load)
        def load_and_patch(loader: ExtensionFileLoader, module: ModuleType) -> None:
            load(loader, module)
            self._patch(module)

        self._patches.replace(ExtensionFileLoader, "exec_module", load_and_patch)

    def uninstall(self) -> None:
        """Put everything back as it was."""
        self._patches.undo()

    def _patch(self, module: ModuleType) -> None:
        if module.__name__.startswith(_NOT_FOREIGN):
            return
        for owner in _owners_in(module):
            for name, function in list(vars(owner).items()):
                if isinstance(function, staticmethod):
                    self._replace(owner, name, function.__func__, staticmethod)
                elif callable(function) and not isinstance(function, type | Patched):
                    self._replace(owner, name, function)

    def _replace(
        self, owner: Any, name: str, function: Callable[..., Any], kind: Callable[[Patched], Any] = lambda same: same
    ) -> None:
        if _HAS_TENSORS.search(function.__doc__ or ""):
            around = self._make if name == "__init__" else self._call
            self._patches.replace(owner, name, kind(self._patches.patched(owner, name, getattr(owner, name), around)))


def _owners_in(module: ModuleType) -> Iterator[Any]:
    """``module``, its submodules, and their classes."""
    yield module
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value
        elif isinstance(value, ModuleType) and value.__name__.startswith(f"{module.__name__}."):
            yield from _owners_in(value)
