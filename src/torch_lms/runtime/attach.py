"""Which threads take part (N13)."""

import threading
from functools import wraps
from typing import Any

import torch

from torch_lms.capture.patches import Call, Patches
from torch_lms.runtime.interposer import Interposer
from torch_lms.stores.io_pool import IoThread


def older() -> list[str]:
    """Names of the threads, other than this and our own, that run already."""
    me = threading.current_thread()
    return [thread.name for thread in threading.enumerate() if thread is not me and not isinstance(thread, IoThread)]


class ThreadHook:
    """Threads started while it is installed are attached. Those of our own stores are not.

    So are threads of PyTorch's own, for as long as they call what waits for a future: the worker of a process group,
    that of a hook for the gradients of ``DistributedDataParallel``.
    """

    def __init__(self, interposer: Interposer) -> None:
        self._interposer = interposer
        self._patches = Patches()

    def install(self) -> None:
        """Patch ``threading.Thread.start`` and PyTorch's futures."""
        original, attached = threading.Thread.start, self._attached

        @wraps(original)
        def start(thread: threading.Thread) -> None:
            if not isinstance(thread, IoThread):
                thread.run = attached(thread.run)  # type: ignore[method-assign]
            original(thread)

        def calls_later(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            future, *callback = args
            return call(future, *map(attached, callback), **{key: attached(value) for key, value in kwargs.items()})

        self._patches.replace(threading.Thread, "start", start)
        for name in ("then", "add_done_callback"):
            self._patches.around(torch._C.Future, name, calls_later)

    def uninstall(self) -> None:
        """Put them back."""
        self._patches.undo()

    def _attached(self, run: Call) -> Call:
        interposer = self._interposer

        @wraps(run)
        def attached_run(*args: Any) -> Any:
            with interposer.attached():
                return run(*args)

        return attached_run
