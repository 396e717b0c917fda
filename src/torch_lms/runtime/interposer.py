"""How operations come to a session: through PyTorch's dispatch modes, or through the native interposer (N22)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from torch_lms.capture.mode import LmsMode
from torch_lms.errors import SessionError
from torch_lms.runtime.asides import Asides


class Interposer(ABC):
    """What makes the operations of threads pass by a session.

    Attributes:
        name: "native" or "python".
        reason: why it is that one.
        asides: threads whose operations are no part of the steps.
    """

    name: str
    reason: str = ""

    def __init__(self) -> None:
        self.asides = Asides()

    def attach(self) -> None:
        """The calling thread's operations pass from now on."""
        self._attach()
        self.asides.thread_begins()

    def detach(self) -> None:
        """They do not any more."""
        self.asides.thread_ends()
        self._detach()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Inside, the calling thread's operations pass."""
        is_new = self._attach()
        if is_new:
            self.asides.thread_begins()
        try:
            yield
        finally:
            if is_new:
                self.detach()

    def step_ends(self) -> None:
        """The calling thread has ended a step."""
        self.asides.step_ends()

    @abstractmethod
    def _attach(self) -> bool:
        """Whether they did not pass before."""

    @abstractmethod
    def _detach(self) -> None: ...

    @abstractmethod
    def unseen(self) -> AbstractContextManager[Any]:
        """Inside, the calling thread's operations pass unseen."""

    @abstractmethod
    def begin(self) -> None:
        """The session is ready."""

    @abstractmethod
    def end(self) -> None:
        """It is over: what still comes is left alone."""

    @abstractmethod
    def set_min_size(self, nbytes: int) -> None:
        """Of storages first seen from now on, those of ``nbytes`` and more are pages."""

    @abstractmethod
    def watch_all(self, always: bool) -> None:
        """Whether each operation must come by the mode, whatever it is."""


class PythonInterposer(Interposer):
    """By a dispatch mode, on the stack of each thread that takes part."""

    name = "python"

    def __init__(self, mode: LmsMode) -> None:
        super().__init__()
        self._mode = mode

    def _attach(self) -> bool:
        is_new = not self._is_attached()
        if is_new:
            _push_mode(self._mode)
        return is_new

    def _detach(self) -> None:
        """Take the mode out of this thread's stack, wherever it stands there."""
        if not self._is_attached():
            return
        above = []
        while (top := _pop_mode()) is not self._mode:
            above.append(top)
        for other in reversed(above):
            _push_mode(other)

    def unseen(self) -> AbstractContextManager[Any]:
        return self._mode.left_out()

    def begin(self) -> None:
        return

    def end(self) -> None:
        return  # the mode asks the session whether it is over

    def set_min_size(self, nbytes: int) -> None:
        return  # the mode asks the session

    def watch_all(self, always: bool) -> None:
        return  # the mode has every operation

    def _is_attached(self) -> bool:
        return any(other is self._mode for other in _get_current_dispatch_mode_stack())


def refuse_inside_other_modes() -> None:
    """A mode entered before ours, and left while ours is on, would take ours away (N20)."""
    others = [type(mode).__name__ for mode in _get_current_dispatch_mode_stack() if not isinstance(mode, LmsMode)]
    if others:
        raise SessionError(
            f"enable() was called inside another dispatch mode ({', '.join(others)}), whose end would end this session "
            f"too: call it before that mode is entered, or use torch_lms.session() inside it"
        )
