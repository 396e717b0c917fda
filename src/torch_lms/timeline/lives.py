"""Puts together the lives of a step's pages, as its events are read."""

from collections.abc import Iterable

from torch_lms.timeline.record import Life


class Lives:
    """The pages of one step. It is told of the step's events in their order.

    Args:
        living: the pages when the step begins, each with its bytes.
    """

    def __init__(self, living: Iterable[tuple[int, int]]) -> None:
        self._lives: dict[int, Life] = {}  # the last of each page's number, which is used once
        self._uses_s: dict[int, list[float]] = {}
        self._died: list[int] = []
        self._pages: tuple[int, ...] = ()
        self._name = ""
        self._op = -1
        self._births = 0
        self._now_s: float | None = None
        for page, nbytes in living:
            self.created(page, nbytes)

    def op_begins(self, name: str, pages: tuple[int, ...], now_s: float) -> None:
        """An operation begins that uses ``pages``."""
        self._end_dead(now_s)
        self._name, self._pages = name, pages
        self._op += 1
        self._births = 0

    def op_runs(self, now_s: float) -> None:
        """It has all that it needs."""
        self._now_s = now_s
        for page in dict.fromkeys(self._pages):
            if page in self._uses_s:
                self._uses_s[page].append(now_s)
        self._pages = ()

    def created(self, page: int, nbytes: int) -> None:
        """The operation that runs created ``page``; before the first one, it was there."""
        made_by = self._name if self._op >= 0 else ""
        self._lives[page] = Life(page, nbytes, made_by, (self._op, self._births), self._now_s, None, ())
        self._uses_s[page] = [] if self._now_s is None else [self._now_s]
        self._births += 1

    def died(self, page: int) -> None:
        """Its storage is gone, since the last operation."""
        self._died.append(page)

    def at_end(self, now_s: float) -> tuple[Life, ...]:
        """All of them; the step ends now."""
        self._end_dead(now_s)
        return tuple(life._replace(uses_s=tuple(self._uses_s[page])) for page, life in self._lives.items())

    def _end_dead(self, now_s: float) -> None:
        for page in self._died:
            if page in self._lives:
                self._lives[page] = self._lives[page]._replace(dead_s=now_s)
        self._died.clear()
