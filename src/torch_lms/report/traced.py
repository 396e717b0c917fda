"""A trace as a timeline: the step as it would be if nothing had to move."""

from itertools import accumulate

from torch_lms.timeline import Lane, Life, Span, Timeline
from torch_lms.trace import Trace

_UNKNOWN_S = 1e-6
"""Of an operation whose seconds are not known, so that all can be seen."""


def laid_out(trace: Trace) -> Timeline:
    """The operations of ``trace`` one after the other, and the lives of its pages."""
    is_timed = trace.seconds > 0
    seconds = [op.seconds if is_timed else _UNKNOWN_S for op in trace.ops]
    begins_s = [0.0, *accumulate(seconds)]
    spans = [Span(Lane.COMPUTE, op.name, begins_s[number], begins_s[number + 1]) for number, op in enumerate(trace.ops)]
    births: dict[int, int] = {}
    lives = []
    for number, page in enumerate(trace.pages):
        place = births[page.born] = births.get(page.born, -1) + 1
        uses_s = tuple(begins_s[op] for op in trace.uses[number])
        lives.append(
            Life(
                number,
                page.nbytes,
                trace.ops[page.born].name if page.born >= 0 else "",
                (page.born, place),
                begins_s[page.born] if page.born >= 0 else None,
                begins_s[max(page.dead, 0) + 1] if page.dead < len(trace.ops) else None,
                uses_s,
            )
        )
    return Timeline(tuple(spans), (), tuple(lives))
