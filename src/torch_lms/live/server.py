"""Serves the readings of a session to other processes of the same user, a line of JSON each second."""

import atexit
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torch_lms.live.reading import Reading
from torch_lms.live.sockets import check_folder, folder, socket_of, user_at_the_other_end

EVERY_S = 1.0
"""Between two readings."""


class Server:
    """While nobody is connected, its thread sleeps.

    Args:
        read: the figures now; None when there will be no more. It is called on a thread of its own.

    Raises:
        OSError: the socket cannot be made.
        UsageError: the folder of sockets is open to others.
    """

    def __init__(self, read: Callable[[], Reading | None]) -> None:
        self._read = read
        self._pid = os.getpid()
        self._path = socket_of(self._pid)
        self._watchers: list[socket.socket] = []
        self._listener = _listening(self._pid)
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="torch-lms watch", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Let go of all who watch, and remove the socket."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        with suppress(OSError):  # closed before
            self._waker.send(b"x")
            self._thread.join(EVERY_S)
        self._path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """Close what is open here. In a forked child: the socket stays the parent's."""
        for each in (self._listener, self._waker, self._woken, *self._watchers):
            each.close()
        self._watchers = []

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            due_s = 0.0
            while True:
                patience_s = max(0.0, due_s - time.monotonic()) if self._watchers else None
                for key, _ in selector.select(patience_s):
                    if key.fileobj is self._woken:
                        return
                    self._admit()
                    due_s = 0.0
                if self._watchers and time.monotonic() >= due_s:
                    due_s = time.monotonic() + EVERY_S
                    self._send()

    def _admit(self) -> None:
        watcher, _ = self._listener.accept()
        if user_at_the_other_end(watcher) != os.geteuid():
            watcher.close()
            return
        watcher.setblocking(False)
        self._watchers.append(watcher)

    def _send(self) -> None:
        reading = self._read()
        if reading is None:
            return
        line = reading.as_line().encode()
        for watcher in list(self._watchers):
            try:
                is_sent = watcher.send(line) == len(line)
            except OSError:  # it has ended, or reads nothing
                is_sent = False
            if not is_sent:
                watcher.close()
                self._watchers.remove(watcher)


def _listening(pid: int) -> socket.socket:
    folder().mkdir(mode=0o700, exist_ok=True)
    check_folder()
    path = socket_of(pid)
    path.unlink(missing_ok=True)  # of an earlier process of this number
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener
