"""Which page the program waited for: told from the copies that ended meanwhile."""

from bisect import bisect_left
from collections.abc import Sequence

from torch_lms.timeline.record import Lane, Life, Span

_COPIES = frozenset({Lane.D2H, Lane.H2D, Lane.DISK})


def with_pages_waited_for(spans: Sequence[Span], lives: Sequence[Life]) -> tuple[Span, ...]:
    """``spans``, of which each stall has the page that it waited for; -1 where no copy ended in it.

    Of the copies that ended during a stall, the last one kept the program waiting. One of a page that the next
    operation uses goes before others: these may have ended meanwhile by chance.
    """
    copies = sorted((span for span in spans if span.lane in _COPIES), key=lambda span: span.end_s)
    ends_s = [span.end_s for span in copies]
    uses_s = {life.page: life.uses_s for life in lives}
    told = []
    for span in spans:
        if span.name == "stall" and span.page < 0:
            during = copies[bisect_left(ends_s, span.start_s) : bisect_left(ends_s, span.end_s * (1 + 1e-9) + 1e-9)]
            span = span._replace(page=_last_needed(during, uses_s, span.end_s))
        told.append(span)
    return tuple(told)


def _last_needed(copies: Sequence[Span], uses_s: dict[int, tuple[float, ...]], until_s: float) -> int:
    for copy in reversed(copies):
        uses = uses_s.get(copy.page, ())
        at = bisect_left(uses, until_s - 1e-9)
        if at < len(uses) and uses[at] <= until_s + 1e-4:
            return copy.page
    return copies[-1].page if copies else -1
