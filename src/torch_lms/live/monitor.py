"""A thread that reads the figures of a session from time to time, and shows them beside its program."""

import atexit
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch_lms.live.reading import Pace, Reading, pace_between
from torch_lms.live.terminal import LastRows, can_be_painted, write
from torch_lms.live.view import ROWS, line, view

Read = Callable[[], Reading | None]

_STDERR = 2
"""The process's own, whatever the program has put in its place."""

_VIEW_EVERY_S = 1.0
_LINE_EVERY_S = 5.0

_MAX_WAIT_S = 2.0
"""For the thread, when the program ends."""


@contextmanager
def shown(read: Read) -> Iterator[None]:
    """Inside, what ``read`` gives is shown on standard error: in the last rows of a terminal, else a line at a time.

    Args:
        read: the figures now; None while there are none. It is called on a thread of its own.
    """
    monitor = show_until_exit(read)
    try:
        yield
    finally:
        monitor.stop()
        atexit.unregister(monitor.stop)


def show_until_exit(read: Read) -> "Monitor":
    """The same until the process ends, or ``stop``."""
    show = _Rows(_STDERR) if can_be_painted(_STDERR, ROWS) else _Lines(_STDERR)
    monitor = Monitor(read, show)
    atexit.register(monitor.stop)
    monitor.start()
    return monitor


class Monitor:
    """Reads and shows, until it is stopped or nobody reads what it shows."""

    def __init__(self, read: Read, show: "_Rows | _Lines") -> None:
        self._read = read
        self._show = show
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="torch-lms live", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, with a last line. Nothing in a forked child, which has no such thread."""
        if os.getpid() != self._pid or self._ended.is_set():
            return
        self._ended.set()
        self._thread.join(_MAX_WAIT_S)
        self._show.end(self._read())

    def _run(self) -> None:
        while not self._ended.wait(self._show.every_s):
            reading = self._read()
            if reading is not None and not self._show(reading):
                return


class _Lines:
    """A line for each reading, where there is no terminal."""

    every_s = _LINE_EVERY_S

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: Reading | None = None

    def __call__(self, reading: Reading) -> bool:
        before, self._before = self._before, reading
        return write(self._fd, f"{line(before, reading)}\n")

    def end(self, reading: Reading | None) -> None:
        """Tell of all that happened."""
        if reading is not None:
            write(self._fd, f"{line(None, reading)}\n")


class _Rows:
    """A view in the last rows of a terminal."""

    every_s = _VIEW_EVERY_S

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rows = LastRows(fd, ROWS)
        self._before: Reading | None = None

    def __call__(self, reading: Reading) -> bool:
        pace = pace_between(self._before, reading)
        self._before = reading
        try:
            return self._rows.paint(_rendered(reading, pace, self._rows.width))
        except OSError:  # the terminal is gone
            return False

    def end(self, reading: Reading | None) -> None:
        """Give the rows back, and tell of all that happened in one line."""
        self._rows.leave()
        if reading is not None:
            write(self._fd, f"{line(None, reading)}\n")


def _rendered(reading: Reading, pace: Pace | None, width: int) -> list[str]:
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(view(reading, pace), no_wrap=True, overflow="ellipsis", crop=True)
    return captured.get().splitlines()
