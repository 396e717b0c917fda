"""How a page can be recomputed instead of moved (N16)."""

from bisect import bisect_left, bisect_right
from functools import cached_property

from torch_lms.engine import Speeds
from torch_lms.planner.gaps import Gap
from torch_lms.policy import Recomputation
from torch_lms.trace import Trace

_MAX_OPS = 32
"""Operations of one recomputation, at most. No record says how 32 was chosen."""


def repeat_s(recomputation: Recomputation, speeds: Speeds) -> float:
    """Seconds that the program loses for it, beside what its operations take: half of it when they are recorded."""
    return speeds.repeat_s * (1 + len(recomputation.ops))


class Producers:
    """Which operations of a step produced the contents of its pages.

    Args:
        trace: the step.
    """

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

    def recomputation(self, gap: Gap) -> Recomputation | None:
        """How to recompute the page of ``gap`` right before the operation that needs it; None if that is not possible.

        The search goes back from the page. What an operation takes is an input of the recomputation if it is still
        there and unchanged; otherwise it is recomputed, too. A page that nobody will need has to be recomputable as
        long as it lives: the program may do what no step before did.
        """
        trace = self._trace
        last = gap.before - 1 if gap.before >= 0 else trace.pages[gap.page].dead
        if gap.after < 0 or gap.wraps or not gap.after <= last < len(trace.ops):
            return None  # it begins in the step before, or does not end in this one
        ops: set[int] = set()
        inputs: set[int] = set()
        recomputed: dict[int, int] = {}  # for each page, how many of its writers run again
        waiting = [(gap.page, bisect_right(self._writers[gap.page], gap.after))]
        while waiting:
            page, writes = waiting.pop()
            if trace.pages[page].born < 0:
                return None  # its first content is from before the step: no operation here produces it
            if page in inputs:
                return None  # its present content is needed, and an older one
            if recomputed.get(page, 0) >= writes:
                continue
            recomputed[page] = writes
            for writer in self._writers[page][:writes]:
                if writer in ops:
                    continue
                ops.add(writer)
                op = trace.ops[writer]
                if not op.is_repeatable or len(ops) > _MAX_OPS:
                    return None
                for other in op.pages:
                    writes_before = bisect_left(self._writers[other], writer)
                    if other in op.writes:
                        waiting.append((other, writes_before + 1))
                    elif other not in recomputed and self._is_unchanged(other, writes_before, last, gap.before):
                        inputs.add(other)
                    else:
                        waiting.append((other, writes_before))
        if inputs & recomputed.keys():
            return None
        in_order = tuple(sorted(ops))
        return Recomputation(
            gap.page,
            gap.after,
            gap.before,
            in_order,
            tuple(sorted(inputs)),
            max(0, self._most_at_once(in_order, gap.page) - gap.nbytes),
        )

    def _most_at_once(self, ops: tuple[int, ...], target: int) -> int:
        """The most bytes of what ``ops`` create, at once, when they run again. A page is there until the last operation
        that uses it; ``target`` stays.
        """
        last_use = {page: op for op in ops for page in (*self._trace.ops[op].pages, *self._trace.ops[op].creates)}
        there: set[int] = set()
        most = 0
        for op in ops:
            there.update(self._trace.ops[op].creates)
            most = max(most, sum(self._trace.pages[page].nbytes for page in there))
            there = {page for page in there if page == target or last_use[page] > op}
        return most

    def _is_unchanged(self, page: int, writes: int, last: int, before: int) -> bool:
        """Whether ``page`` still holds, after the operation ``last``, what it held after so many ``writes``, and lives
        until the operation ``before``; -1: until ``last``.
        """
        known = self._trace.pages[page]
        lives = known.dead >= max(last, before)
        return lives and bisect_right(self._writers[page], last) == writes and not known.unpageable
