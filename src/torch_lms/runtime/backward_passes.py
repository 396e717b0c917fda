"""When backward passes end."""

from collections.abc import Callable
from typing import Any

from torch.autograd import Variable

_Engine: Any = type(Variable._execution_engine)


class BackwardPasses:
    """Calls ``ended`` after each backward pass that Python starts, and that does not fail."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._engine = _Noticing()
        self._engine.ended = ended

    def install(self) -> None:
        """From now on."""
        self._before = Variable._execution_engine
        Variable._execution_engine = self._engine

    def uninstall(self) -> None:
        """No longer."""
        Variable._execution_engine = self._before


class _Noticing(_Engine):  # type: ignore[misc]
    ended: Callable[[], None]

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().run_backward(*args, **kwargs)
        self.ended()
        return found
