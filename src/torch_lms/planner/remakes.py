"""Which pages had better be made again than moved (N16)."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from torch_lms.planner.gaps import Gap, gaps_of
from torch_lms.planner.room import Room
from torch_lms.policy import Remade
from torch_lms.trace import Trace

_MOST_OPS = 32
"""Of a chain: with every one more, more must be there at once."""


_LEAST_PRICE = 0.05
"""Of what is made again, beside what is moved: it may turn out that there is no room for what it takes."""


class Speeds(NamedTuple):
    """Of the link, bytes per second."""

    out: float
    back: float

    def seconds(self, gap: Gap, gaps: int = 1) -> float:
        """For moving its page out and back, if ``gaps`` share the copy."""
        out_s = 0.0 if gap.is_copied else gap.nbytes / self.out / gaps
        return out_s + (gap.nbytes / self.back if gap.before >= 0 else 0.0)


def prices_of(trace: Trace, speeds: Speeds) -> dict[Gap, float]:
    """Of the gaps whose page is made again in less time than it takes to move: the share."""
    makers = _Makers(trace)
    found = {}
    for gap in gaps_of(trace):
        program = makers.program(gap)
        if program is not None and (share := _seconds(trace, program) / speeds.seconds(gap)) < 1:
            found[gap] = max(_LEAST_PRICE, share)
    return found


def seconds_of(trace: Trace, moved: Iterable[Gap], remade: Iterable[Remade], speeds: Speeds) -> float:
    """What they take together, one after the other."""
    moved = list(moved)
    copies = Counter(gap.version for gap in moved)
    moving = sum(speeds.seconds(gap, copies[gap.version]) for gap in moved)
    return moving + sum(_seconds(trace, one) for one in remade)


def _seconds(trace: Trace, remade: Remade) -> float:
    return sum(trace.ops[op].seconds for op in remade.ops)


def remake(trace: Trace, chosen: Iterable[Gap], room: Room, speeds: Speeds) -> tuple[list[Gap], list[Remade]]:
    """Of ``chosen``, the gaps in which pages are still moved, and what is made again in place of the others.

    A page is dropped if the operations that make it again take less time than its way out and back, and if all that
    these need is there when it is needed, or can be there from then on: pages that are away come back earlier, as far
    as there is room. Those needed first are decided first, so that of a chain every page is made again from the one
    before, until room ends and the next is moved.

    Args:
        trace: the step.
        chosen: when pages are away.
        room: under the limit with ``chosen`` taken; what comes back earlier is taken from it.
        speeds: of the link.
    """
    makers = _Makers(trace)
    away = {gap: gap for gap in chosen}  # as chosen: as it is now
    of_page: dict[int, list[Gap]] = {}
    for gap in away:
        of_page.setdefault(gap.page, []).append(gap)
    copies = Counter(gap.version for gap in away)
    dropped: dict[Gap, Remade] = {}
    for first in sorted(away, key=lambda gap: (gap.before, -gap.nbytes)):
        if first not in away:
            continue
        gap = away[first]
        found = makers.program(gap)
        if found is None or _seconds(trace, found) > speeds.seconds(gap, copies[gap.version]):
            continue
        late = [
            other
            for page in found.inputs
            for other in of_page.get(page, ())
            if other in away and any(begin <= found.before <= end for begin, end in away[other].spans)
        ]
        if any(len(away[other].spans) > 1 or other in dropped for other in late):
            continue
        if not _make_room(room, [away[other] for other in late], found):
            continue
        for other in late:
            earlier = _until(away[other], found.before)
            if earlier is None:
                del away[other]
            else:
                away[other] = earlier
        dropped[first] = found
        copies[gap.version] -= 1
    return [gap for first, gap in away.items() if first not in dropped], list(dropped.values())


def _until(gap: Gap, before: int) -> Gap | None:
    """``gap`` if the page is back for the operation ``before``; None if it need not leave."""
    begin = gap.spans[0][0]
    return replace(gap, before=before, spans=((begin, before - 1),)) if begin < before else None


def _make_room(room: Room, late: list[Gap], found: Remade) -> bool:
    """Have the pages of ``late`` back for what ``found`` is made again for, and room for what that makes on the way.

    Whether the limit still holds; if not, nothing has changed.
    """
    needs = [((found.before, gap.spans[0][1]), gap.nbytes) for gap in late]
    needs.append(((found.before, found.before), found.extra_bytes))
    for done, (span, nbytes) in enumerate(needs):
        if not room.holds(span, nbytes):
            for other, taken in needs[:done]:
                room.fill(other, -taken)
            return False
        room.fill(span, nbytes)
    return True


class _Makers:
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

    def program(self, gap: Gap) -> Remade | None:
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
        return Remade(
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
