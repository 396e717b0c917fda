"""Functions of other libraries, in C++, that are given tensors: no operation shows what they read and write (N11)."""

import gc
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from importlib.machinery import ExtensionFileLoader
from types import BuiltinFunctionType, ModuleType
from typing import Any

from torch_lms.capture.patches import Around, Patches

_NOT_FOREIGN = ("torch.", "torch_lms")
"""How the names of modules begin that are PyTorch's or ours."""

_HAS_TENSORS = re.compile(r"(?:: |-> )[^,()]*\b(?:torch\.|at::)Tensor\b")
"""In the signature that pybind11 writes at the head of a function's documentation."""


@dataclass(frozen=True)
class _Function:
    """One whose signature has tensors.

    Attributes:
        owner: the module, or the class.
        name: its own there.
        is_static: whether it is a static method.
    """

    owner: Any
    name: str
    is_static: bool


class Extensions:
    """Patches the functions and methods of extension modules whose signatures have tensors: of those that are loaded,
    and of those that will be.

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
        _watch_loading()
        for function in _found:
            self._patch(function)
        _told.append(self._patch)
        self._patches.later(lambda: _told.remove(self._patch))

    def uninstall(self) -> None:
        """Put everything back as it was."""
        self._patches.undo()

    def _patch(self, function: _Function) -> None:
        owner, name = function.owner, function.name
        around = self._make if name == "__init__" else self._call
        patched = self._patches.patched(owner, name, getattr(owner, name), around)
        self._patches.replace(owner, name, staticmethod(patched) if function.is_static else patched)


_found: list[_Function] = []
"""In the extension modules of this process."""

_told: list[Callable[[_Function], None]] = []
"""Who hears of others."""


@cache
def _watch_loading() -> None:
    """Look through the modules that are there, and from now on, as long as the process lives, through each that comes.

    Some stand in no table: `load_inline` makes such, so they are looked for among all objects.
    """
    load = ExtensionFileLoader.exec_module

    @wraps(load)
    def load_and_look(loader: ExtensionFileLoader, module: ModuleType) -> None:
        load(loader, module)
        _look_through(module)

    ExtensionFileLoader.exec_module = load_and_look  # type: ignore[method-assign, assignment]
    there = {id(value): value for value in (*sys.modules.values(), *gc.get_objects()) if type(value) is ModuleType}
    for module in there.values():
        if isinstance(getattr(vars(module).get("__spec__"), "loader", None), ExtensionFileLoader):
            _look_through(module)


def _look_through(module: ModuleType) -> None:
    if module.__name__.startswith(_NOT_FOREIGN):
        return
    for owner in _owners_in(module):
        for name, value in list(vars(owner).items()):
            is_static = isinstance(value, staticmethod)
            called = value.__func__ if is_static else value
            if _is_of_c(called) and _HAS_TENSORS.search(called.__doc__ or ""):
                function = _Function(owner, name, is_static)
                _found.append(function)
                for tell in list(_told):
                    tell(function)


def _owners_in(module: ModuleType) -> Iterator[Any]:
    """``module``, its submodules, and their classes."""
    yield module
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value
        elif isinstance(value, ModuleType) and value.__name__.startswith(f"{module.__name__}."):
            yield from _owners_in(value)


def _is_of_c(value: Any) -> bool:
    """Whether it is a function, or a method, as pybind11 makes them."""
    return isinstance(value, BuiltinFunctionType) or type(value).__name__ == "instancemethod"
