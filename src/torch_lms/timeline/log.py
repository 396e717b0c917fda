"""Writes a timeline down while a step runs."""

from torch_lms.timeline.record import Lane, Level, Span, Timeline

_MOST_SPANS = 1_000_000
"""A program whose steps nobody sees end must not fill the memory with its past."""


class Log:
    """One step. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._levels: list[Level] = []
        self._name, self._start_s = "", 0.0

    def __len__(self) -> int:
        """Operations so far."""
        return len(self._levels)

    def op_ends(self, now_s: float) -> None:
        """The operation that began last, and what the program did after it, is over."""
        if self._name:
            self.add(Span(Lane.COMPUTE, self._name, self._start_s, now_s))
            self._name = ""

    def op_begins(self, name: str, now_s: float, level: Level) -> None:
        """An operation has all that it needs; ``level`` is what there is now."""
        self._name, self._start_s = name, now_s
        if len(self._levels) < _MOST_SPANS:
            self._levels.append(level)

    def add(self, *spans: Span) -> None:
        """Note what took time beside operations, copies too."""
        if len(self._spans) < _MOST_SPANS:
            self._spans += spans

    def finish(self, now_s: float) -> Timeline:
        """The step ended."""
        self.op_ends(now_s)
        return Timeline(tuple(self._spans), tuple(self._levels))
