"""Which threads take part (N13)."""

import threading
from collections.abc import Callable
from functools import wraps

from torch_lms.runtime.interposer import Interposer
from torch_lms.stores.io_pool import IoThread


def older() -> list[str]:
    """Names of the threads, other than this and our own, that run already."""
    me = threading.current_thread()
    return [thread.name for thread in threading.enumerate() if thread is not me and not isinstance(thread, IoThread)]


class ThreadHook:
    """Threads started while it is installed are attached. Those of our own stores are not."""

    def __init__(self, interposer: Interposer) -> None:
        self._interposer = interposer
        self._original: Callable[[threading.Thread], None] | None = None

    def install(self) -> None:
        """Patch ``threading.Thread.start``."""
        original, interposer = threading.Thread.start, self._interposer

        @wraps(original)
        def start(thread: threading.Thread) -> None:
            if not isinstance(thread, IoThread):
                thread.run = _attached(thread.run, interposer)  # type: ignore[method-assign]
            original(thread)

        self._original = original
        threading.Thread.start = start  # type: ignore[method-assign, assignment]

    def uninstall(self) -> None:
        """Put ``threading.Thread.start`` back."""
        if self._original is not None:
            threading.Thread.start = self._original  # type: ignore[method-assign, assignment]
            self._original = None


def _attached(run: Callable[[], None], interposer: Interposer) -> Callable[[], None]:
    @wraps(run)
    def attached_run() -> None:
        interposer.attach()
        try:
            run()
        finally:
            interposer.detach()

    return attached_run
