"""What PyTorch does on our behalf is no operation of the program's: nobody sees it."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch

exclude: Callable[[bool], bool] | None = None
"""Of the native interposer, once there is one: hides the calling thread's operations from it; returns what was."""


class Undispatched:
    """Inside, neither a dispatch mode nor the native interposer sees what this thread does."""

    def __enter__(self) -> Self:
        self._was_excluded = exclude(True) if exclude is not None else True
        self._no_dispatch = torch._C._DisableTorchDispatch()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del self._no_dispatch
        if exclude is not None and not self._was_excluded:
            exclude(False)
