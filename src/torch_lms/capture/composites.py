"""Composite operators that read bytes themselves, in C++, where nobody sees it (N11)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from torch_lms.capture.schema import describe, is_checked, is_composite

_C: Any = torch._C
_COMPOSITE = _C.DispatchKey.CompositeImplicitAutograd


class Composites:
    """Holds the arguments of every call of such an operator on the CPU: on other devices it could not read bytes.

    Args:
        hold: keeps the tensors among arguments resident. Is given them, and those among them that are written.
    """

    def __init__(self, hold: Callable[[tuple[Any, ...], list[Any]], AbstractContextManager[None]]) -> None:
        self._hold = hold
        self._library: torch.library.Library | None = None

    def install(self) -> None:
        """Replace PyTorch's kernels by functions that hold the arguments and call them."""
        self._library = torch.library.Library("aten", "IMPL")
        for func in _operators():
            self._library.impl(func.name().removeprefix("aten::"), self._held(func), "AutogradCPU")

    def uninstall(self) -> None:
        """Put everything back as it was."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _held(self, func: torch._ops.OpOverload) -> Callable[..., Any]:
        info = describe(func)

        def held(*args: Any, **kwargs: Any) -> Any:
            with self._hold((*args, *kwargs.values()), info.written_args(args, kwargs)):
                return func._op_dk(_COMPOSITE, *args, **kwargs)

        return held


@cache
def _operators() -> list[torch._ops.OpOverload]:
    """The operators of PyTorch's own library that may read bytes."""
    found = []
    for name in _C._dispatch_get_all_op_names():
        if name.startswith("aten::") and is_composite(name) and not is_checked(name):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            func = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if describe(func).reads_bytes:
                found.append(func)
    return found
