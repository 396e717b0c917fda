"""How pages can be made again instead of being moved (N16)."""

from bisect import bisect_left, bisect_right
from functools import cached_property

from torch_lms.planner.gaps import Gap
from torch_lms.policy import Recomputation
from torch_lms.trace import Trace

_MOST_OPS = 32
"""Of a program: with every one more, more must be there at once."""


class Makers:
    """Which operations made what."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _writers(self) -> list[list[int]]:
        """For each page, the operations that gave it a new content, in order."""
        found: list[list[int]] = [[] for _ in self._trace.pages]
        for number, op in enumerate(self._trace.ops):
            for page in {*op.creates, *op.writes}:
                found[page].append(number)
        return found

    def program(self, gap: Gap) -> Recomputation | None:
        """How to make the page of ``gap`` again right before the operation that needs it; None if that is not possible.

        What is there by then is taken; what is not, or has changed, is made again, too.
        """
        if not 0 <= gap.after < gap.before:
            return None
        trace = self._trace
        ops: set[int] = set()
        made: dict[int, int] = {}  # contents that have to be made: page, and how many of its writers
        inputs: set[int] = set()
        waiting = [(gap.page, bisect_right(self._writers[gap.page], gap.after))]
        while waiting:
            page, count = waiting.pop()
            if trace.pages[page].born < 0 or page in inputs:
                return None
            if made.get(page, 0) >= count:
                continue
            made[page] = count
            for writer in self._writers[page][:count]:
                if writer in ops:
                    continue
                op = trace.ops[writer]
                ops.add(writer)
                if not op.is_repeatable or len(ops) > _MOST_OPS:
                    return None
                for other in op.pages:
                    written = bisect_left(self._writers[other], writer)
                    if other not in made and other not in op.writes and self._is_there(other, written, gap.before):
                        inputs.add(other)
                    else:
                        waiting.append((other, written + (other in op.writes)))
        if inputs & made.keys():
            return None
        on_the_way = {page for op in ops for page in (*trace.ops[op].creates, *trace.ops[op].writes)} - {gap.page}
        return Recomputation(
            gap.page,
            gap.after,
            gap.before,
            tuple(sorted(ops)),
            tuple(sorted(inputs)),
            sum(trace.pages[page].nbytes for page in on_the_way),
        )

    def _is_there(self, page: int, writes: int, before: int) -> bool:
        """Whether ``page`` holds what it held after so many ``writes`` until the operation ``before``."""
        known = self._trace.pages[page]
        return known.dead >= before and bisect_left(self._writers[page], before) == writes and not known.unpageable
