"""Ctrl-C waits until our own code is left: in the midst of it, it would break the books (N13)."""

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGE = Path(__file__).parents[1]
_FLOORS = ("capture", "engine", "pager", "policy", "residency", "stores")
_RUNTIME = (
    *("backend", "cpu", "executor", "fast_path", "holds", "native_interposer", "native_moves", "native_pages"),
    *("page_table", "session", "staging", "streams"),
)
_OURS = (
    *(f"{_PACKAGE / floor}/" for floor in _FLOORS),
    *(str(_PACKAGE / "runtime" / f"{name}.py") for name in _RUNTIME),
)
"""Files whose frames mean that the books may be in between two states. Not those that call the user's code."""

_RETRY_S = 0.05


class Interrupts:
    """Handles SIGINT while it is installed, on the main thread.

    A signal that comes while a frame of ours is on the stack is kept. Whoever next asks ``deliver``, at a place where
    nothing is half done, has it handled as the program wanted; a thread asks again every now and then besides.

    Args:
        notify: told whether one is kept.
    """

    def __init__(self, notify: Callable[[bool], None]) -> None:
        self._notify = notify
        self._kept = False
        self._previous: Callable[[int, FrameType | None], Any] | None = None

    def install(self) -> None:
        """Take SIGINT over, if this is the main thread and Python handles it."""
        previous = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(previous):
            self._previous = previous
            signal.signal(signal.SIGINT, self._handle)

    def uninstall(self) -> None:
        """Give it back, unless somebody else has taken it since."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._previous is not None and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._previous)
        self.deliver()
        self._previous = None

    def deliver(self) -> None:
        """Handle the signal that was kept, if there is one and this is the main thread."""
        if self._kept and threading.current_thread() is threading.main_thread():
            self._keep(False)
            (self._previous or signal.default_int_handler)(signal.SIGINT, sys._getframe())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._previous is None:
            signal.default_int_handler(number, frame)
        elif _is_inside(frame):
            if not self._kept:
                self._keep(True)
                threading.Timer(_RETRY_S, self._try_again).start()
        else:
            self._keep(False)
            self._previous(number, frame)

    def _try_again(self) -> None:
        """The program may never come by ``deliver`` again."""
        if self._kept:
            self._kept = False
            signal.raise_signal(signal.SIGINT)

    def _keep(self, kept: bool) -> None:
        self._kept = kept
        self._notify(kept)


def _is_inside(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OURS):
            return True
        frame = frame.f_back
    return False
