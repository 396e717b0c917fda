"""Records a timeline while a step runs."""

from collections.abc import Callable
from typing import Any

from torch_lms.timeline.record import Lane, Level, Span, Timeline

_MAX_SPANS = 1_000_000
"""A program whose steps nobody sees end must not fill the memory with its past."""


class Log:
    """Records one step. ``now``, ``start`` and ``end`` are moments of one clock, in whatever form it has them.

    Args:
        shortest_stall_s: stalls that are no longer than this are omitted.
    """

    def __init__(self, shortest_stall_s: float = 0.0) -> None:
        self._shortest_stall_s = shortest_stall_s
        self._spent: list[tuple[str, Any, Any, int, int]] = []
        self._copies: list[Span] = []
        self._levels: list[tuple[Any, int, int, int]] = []
        self._name = ""
        self._start: Any = None

    def __len__(self) -> int:
        """The number of operations so far."""
        return len(self._levels)

    def op_ends(self, now: Any) -> None:
        """Note that the operation that began last, and what the program did after it, is over."""
        if self._name:
            self.spent(self._name, self._start, now)
            self._name = ""

    def op_begins(self, name: str, now: Any, resident: int, host: int, disk: int) -> None:
        """Note that an operation has all that it needs, and how many bytes of pages are in each tier now."""
        self._name = name
        self._start = now
        if len(self._levels) < _MAX_SPANS:
            self._levels.append((now, resident, host, disk))

    def spent(self, name: str, start: Any, end: Any, nbytes: int = 0, page: int = -1) -> None:
        """Note what the program was kept busy with, or waited for."""
        if len(self._spent) < _MAX_SPANS:
            self._spent.append((name, start, end, nbytes, page))

    def add(self, *copies: Span) -> None:
        """Note what was done beside the program."""
        if len(self._copies) < _MAX_SPANS:
            self._copies += copies

    def timeline(self, when: Callable[[Any], float] = float) -> Timeline:
        """The timeline of the whole step, which is over; ``when`` tells seconds from moments."""
        spent = [
            Span(Lane.COMPUTE, name, when(start), when(end), nbytes, page)
            for name, start, end, nbytes, page in self._spent
        ]
        kept = [span for span in spent if span.name != "stall" or span.end_s - span.start_s > self._shortest_stall_s]
        levels = (Level(when(now), resident, host, disk) for now, resident, host, disk in self._levels)
        return Timeline((*kept, *self._copies), tuple(levels))
