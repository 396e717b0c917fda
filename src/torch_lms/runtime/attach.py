"""Which threads take part (N13)."""

import threading
from collections.abc import Callable
from functools import wraps

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from torch_lms.capture.mode import LmsMode
from torch_lms.errors import SessionError
from torch_lms.stores.io_pool import IoThread


def is_attached(mode: LmsMode) -> bool:
    """Whether this thread's operations pass through ``mode``."""
    return any(other is mode for other in _get_current_dispatch_mode_stack())


def attach(mode: LmsMode) -> None:
    """This thread's operations pass through ``mode`` from now on."""
    if not is_attached(mode):
        _push_mode(mode)


def older() -> list[str]:
    """Names of the threads, other than this and our own, that run already."""
    me = threading.current_thread()
    return [thread.name for thread in threading.enumerate() if thread is not me and not isinstance(thread, IoThread)]


def refuse_inside_other_modes() -> None:
    """A mode entered before ours, and left while ours is on, would take ours away (N20)."""
    others = [type(mode).__name__ for mode in _get_current_dispatch_mode_stack() if not isinstance(mode, LmsMode)]
    if others:
        raise SessionError(
            f"enable() was called inside another dispatch mode ({', '.join(others)}), whose end would end this session "
            f"too: call it before that mode is entered, or use torch_lms.session() inside it"
        )


def detach(mode: LmsMode) -> None:
    """Take ``mode`` out of this thread's stack, wherever it stands there."""
    if not is_attached(mode):
        return
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)


class ThreadHook:
    """Threads started while it is installed are attached. Those of our own stores are not."""

    def __init__(self, mode: LmsMode) -> None:
        self._mode = mode
        self._original: Callable[[threading.Thread], None] | None = None

    def install(self) -> None:
        """Patch ``threading.Thread.start``."""
        original, mode = threading.Thread.start, self._mode

        @wraps(original)
        def start(thread: threading.Thread) -> None:
            if not isinstance(thread, IoThread):
                thread.run = _attached(thread.run, mode)  # type: ignore[method-assign]
            original(thread)

        self._original = original
        threading.Thread.start = start  # type: ignore[method-assign, assignment]

    def uninstall(self) -> None:
        """Put ``threading.Thread.start`` back."""
        if self._original is not None:
            threading.Thread.start = self._original  # type: ignore[method-assign, assignment]
            self._original = None


def _attached(run: Callable[[], None], mode: LmsMode) -> Callable[[], None]:
    @wraps(run)
    def attached_run() -> None:
        attach(mode)
        try:
            run()
        finally:
            detach(mode)

    return attached_run
