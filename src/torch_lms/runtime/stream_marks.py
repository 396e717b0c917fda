"""What was asked of streams by when: whoever waits for a use in the past need not wait for what came after it."""

from bisect import bisect_right
from dataclasses import dataclass, field

from torch_lms.runtime.device import Stream, StreamEvent

_KEPT = 256
"""Marks of a stream. Older uses have most likely ended, or the oldest mark kept is near enough."""


@dataclass(slots=True)
class _Marks:
    """Of one stream, in their order."""

    ticks: list[int] = field(default_factory=list)
    events: list[StreamEvent] = field(default_factory=list)


class StreamMarks:
    """Marks on streams, by the tick of each: what used a page at an earlier tick was asked for before."""

    def __init__(self) -> None:
        self._of: dict[Stream, _Marks] = {}

    def add(self, stream: Stream, tick: int, event: StreamEvent) -> None:
        """``event`` was recorded on ``stream`` at ``tick``, which is not less than that of the last."""
        marks = self._of.setdefault(stream, _Marks())
        marks.ticks.append(tick)
        marks.events.append(event)
        if len(marks.ticks) > 2 * _KEPT:
            del marks.ticks[:_KEPT]
            del marks.events[:_KEPT]

    def first_after(self, stream: Stream, tick: int) -> StreamEvent | None:
        """The first on ``stream`` after ``tick``; None if there is none."""
        marks = self._of.get(stream)
        if marks is None:
            return None
        place = bisect_right(marks.ticks, tick)
        return marks.events[place] if place < len(marks.events) else None
