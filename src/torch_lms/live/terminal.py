"""The last rows of a terminal, kept for a view while a program writes above them.

The program's own output is left as it is, whoever writes it: the terminal is told to scroll all rows but the last
(DECSTBM), as apt does it. Each change is a single write, which a terminal does not mix with others.
"""

import os
from collections.abc import Sequence

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_SCROLL_ALL = "\x1b[r"
_DOWN = "\x1bD"
_ERASE_LINE = "\x1b[K"

_MIN_ROWS_ABOVE = 6
"""For the program's own output."""


def write(fd: int, text: str) -> bool:
    """Write ``text`` without a buffer, whose lock a fork might take along. Whether it could be."""
    try:
        os.write(fd, text.encode(errors="replace"))
    except OSError:  # nobody reads it any more
        return False
    return True


def can_be_painted(fd: int, rows: int) -> bool:
    """Whether ``fd`` is a terminal on which ``rows`` rows can be kept."""
    try:
        return os.isatty(fd) and os.environ.get("TERM", "dumb") != "dumb" and _height(fd) >= rows + _MIN_ROWS_ABOVE
    except OSError:
        return False


def _height(fd: int) -> int:
    return os.get_terminal_size(fd).lines


class LastRows:
    """The last rows of the terminal ``fd``."""

    def __init__(self, fd: int, rows: int) -> None:
        self._fd = fd
        self._rows = rows
        self._height = 0

    @property
    def width(self) -> int:
        """Columns that a row may take."""
        return os.get_terminal_size(self._fd).columns - 1

    def paint(self, lines: Sequence[str]) -> bool:
        """Show ``lines``, as wide as ``width`` at most; nothing in a terminal that has become too small. Whether it is
        there at all.
        """
        height = _height(self._fd)
        if height <= self._rows:
            return True
        claim = "" if height == self._height else self._claim(height)
        self._height = height
        return write(self._fd, f"{claim}{_SAVE}{self._painted(lines)}{_RESTORE}")

    def leave(self) -> None:
        """Give the rows back, empty."""
        if self._height:
            write(self._fd, f"{_SAVE}{_SCROLL_ALL}{self._painted(())}{_RESTORE}")
            self._height = 0

    def _claim(self, height: int) -> str:
        """Move what is there up by so many rows, and have only the rows above them scroll."""
        room = f"{_SAVE}{_SCROLL_ALL}{_RESTORE}{_DOWN * self._rows}\x1b[{self._rows}A"
        return f"{room}{_SAVE}\x1b[1;{height - self._rows}r{_RESTORE}"

    def _painted(self, lines: Sequence[str]) -> str:
        first = self._height - self._rows + 1
        shown = [*lines[: self._rows], *[""] * (self._rows - len(lines))]
        return "".join(f"\x1b[{first + number};1H{text}{_ERASE_LINE}" for number, text in enumerate(shown))
