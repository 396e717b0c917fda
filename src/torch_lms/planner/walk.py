"""One walk over the operations: whenever room is short, the page leaves that is cheapest to be without."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import NamedTuple

from torch_lms.engine import Speeds
from torch_lms.planner.gaps import Gap, gaps_of
from torch_lms.planner.remakes import Makers
from torch_lms.policy import Recomputation
from torch_lms.trace import Trace, demand_curve

_LEAST_S = 1e-9
"""Between an operation and the next."""


class Choice(NamedTuple):
    """When pages are away: moved, or dropped and made again."""

    moved: list[Gap]
    dropped: list[tuple[Gap, Recomputation]]


class Rules(NamedTuple):
    """What it costs to be without a page.

    Attributes:
        price: of a second of the link, in seconds of computing. The higher, the more is made again.
        is_punctual: whether it counts that a copy would not be done in time.
        counts_inputs: whether it counts that what a page is made from may have left by then.
        anchors: pages that are not made again, whatever it costs: what others are made from may begin there.
        focus: how much more it counts to be away where the step is most over the limit; 0 if all times count alike.
    """

    price: float
    is_punctual: bool = True
    counts_inputs: bool = False
    anchors: frozenset[int] = frozenset()
    focus: float = 0.0


class Walker:
    """Walks along ``trace`` under ``limit``. What holds at any price is found out once.

    Args:
        trace: the step, which follows its like.
        limit: bytes that its pages may occupy; more while an operation's own pages exceed it.
        speeds: of the link.
    """

    def __init__(self, trace: Trace, limit: int, speeds: Speeds) -> None:
        self.trace, self.limit, self.speeds = trace, limit, speeds
        self.starts = list(accumulate((op.seconds for op in trace.ops), initial=0.0))
        over = [max(0, nbytes - limit) for nbytes in demand_curve(trace).nbytes]
        most = max(1, *over)
        self._over = [nbytes / most for nbytes in over]
        self.before = {page.becomes: number for number, page in enumerate(trace.pages) if page.becomes >= 0}
        self.gaps = {(gap.page, gap.after): gap for gap in gaps_of(trace)}
        makers = Makers(trace)
        found = {gap: makers.program(gap) for gap in self.gaps.values()}
        self.programs = {gap: program for gap, program in found.items() if program is not None}
        self._seconds = {
            program.ops: sum(trace.ops[op].seconds for op in program.ops) for program in self.programs.values()
        }
        self.deaths: list[list[int]] = [[] for _ in trace.ops]
        for number, page in enumerate(trace.pages):
            if page.dead < len(trace.ops):
                self.deaths[max(0, page.dead)].append(number)

    def walk(self, rules: Rules) -> Choice:
        """The pages to be without, by ``rules``."""
        walk = _Walk(self, rules)
        walk.step()
        walk.step()
        return walk.choice()

    def worths(self, focus: float) -> list[float]:
        """Of having a page away until each operation: seconds, weighed by what the step is over the limit."""
        weighed = (op.seconds * share**focus for op, share in zip(self.trace.ops, self._over, strict=True))
        return list(accumulate(weighed, initial=0.0))

    def seconds(self, program: Recomputation) -> float:
        """That it takes to run."""
        return self._seconds[program.ops]


@dataclass(slots=True)
class _Absence:
    """A page is not on the device, since ``gap`` began."""

    gap: Gap
    program: Recomputation | None


class _Stay(NamedTuple):
    """A page is on the device, and might be away.

    Attributes:
        gap: from now on.
        program: how it is made again; None if that is not possible.
        out_s, back_s: on the link.
        make_s: of ``program``; infinite if there is none.
    """

    gap: Gap
    program: Recomputation | None
    out_s: float
    back_s: float
    make_s: float

    @classmethod
    def of(cls, gap: Gap, program: Recomputation | None, given: Walker) -> "_Stay":
        """For a page that has no copy yet, but for constants."""
        out_s = 0.0 if gap.is_copied else gap.nbytes / given.speeds.out
        back_s = gap.nbytes / given.speeds.back if gap.before >= 0 else 0.0
        return cls(gap, program, out_s, back_s, inf if program is None else given.seconds(program))


class _Walk:
    """Step after step."""

    def __init__(self, given: Walker, rules: Rules) -> None:
        self._given, self._trace, self._pages, self._rules = given, given.trace, given.trace.pages, rules
        self._worths = given.worths(rules.focus)
        self._resident = {number for number, page in enumerate(self._pages) if page.born < 0}
        self._held = sum(self._pages[number].nbytes for number in self._resident)
        self._away: dict[int, _Absence] = {}
        self._clean: set[int] = set()
        self._last: dict[int, int] = {}
        self._position, self._late_s, self._out_free_s = 0, 0.0, 0.0
        self._stays: dict[tuple[int, int], _Stay | None] = {}
        self._moved: list[Gap] = []
        self._dropped: list[tuple[Gap, Recomputation]] = []

    def step(self) -> None:
        """One more."""
        self._moved, self._dropped = [], []
        for position, op in enumerate(self._trace.ops):
            self._position = position
            pinned = set(op.pages)
            for page in op.pages:
                self._bring(page, pinned)
            self._make_room(op.new_bytes, pinned)
            for page in op.creates:
                self._resident.add(page)
                self._held += self._pages[page].nbytes
            self._clean.difference_update(op.writes)
            for page in (*op.pages, *op.creates):
                self._last[page] = position
            for page in self._given.deaths[position]:
                self._die(page)
        self._end()

    def choice(self) -> Choice:
        """Of the last step."""
        still_away = [absence.gap for absence in self._away.values()]
        found = {(gap.page, gap.after): gap for gap in (*still_away, *self._moved)}
        return Choice(list(found.values()), self._dropped)

    def _end(self) -> None:
        """Pages that live on have other numbers in the next step."""
        for page in [page for page in (*self._resident, *self._away) if self._pages[page].becomes < 0]:
            self._die(page)
        heirs = {number: page.becomes for number, page in enumerate(self._pages)}
        self._resident = {heirs[page] for page in self._resident}
        self._away = {heirs[page]: absence for page, absence in self._away.items()}
        self._clean = {heirs[page] for page in self._clean if heirs[page] >= 0}
        self._last.clear()
        self._out_free_s -= self._given.starts[-1] + self._late_s
        self._late_s = 0.0

    def _die(self, page: int) -> None:
        if page in self._resident:
            self._resident.remove(page)
            self._held -= self._pages[page].nbytes
        elif page in self._away:
            self._return(page, before=-1)
        self._clean.discard(page)

    # -- being back --------------------------------------------------------------------------------------------------

    def _bring(self, page: int, pinned: set[int]) -> None:
        """Have ``page`` on the device, and before that what it is made from, as the pager does it."""
        chain = [page] if page in self._away else []
        while chain:
            made = chain[-1]
            if made not in self._away:
                chain.pop()
                continue
            program = self._away[made].program
            missing = [other for other in program.inputs if other in self._away] if program is not None else []
            if missing:
                chain.append(missing[0])
                continue
            held = {other for one in chain if (p := self._away[one].program) is not None for other in p.inputs}
            self._have(chain.pop(), program, pinned | held)

    def _have(self, page: int, program: Recomputation | None, pinned: set[int]) -> None:
        nbytes = self._pages[page].nbytes
        if program is None:
            self._make_room(nbytes, pinned)
            self._clean.add(page)
        else:
            self._make_room(nbytes + program.extra_bytes, pinned)
            self._late_s += self._given.seconds(program)
        self._return(page, before=self._position)
        self._resident.add(page)
        self._held += nbytes
        self._last[page] = self._position

    def _return(self, page: int, before: int) -> None:
        """Note how long ``page`` was away."""
        absence = self._away.pop(page)
        gap = absence.gap
        if before >= 0 and before != gap.before:
            gap = replace(gap, before=before, spans=_until(gap, before))
        if not gap.spans:
            return
        if absence.program is None:
            self._moved.append(gap)
        else:
            self._dropped.append((gap, absence.program._replace(after=gap.after, before=before)))

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _make_room(self, nbytes: int, pinned: set[int]) -> None:
        """For ``nbytes`` more, without those of ``pinned``."""
        while self._held + nbytes > self._given.limit:
            queue = _Queue(
                (self._end_s(absence.gap), absence.gap.nbytes)
                for absence in self._away.values()
                if absence.program is None
            )
            best, least = None, (inf, -1)
            for page in self._resident - pinned:
                stay = self._stay(page)
                if stay is None:
                    continue
                weight = stay.gap.nbytes * max(self._worth(stay.gap), _LEAST_S)
                if self._least_s(page, stay) > least[0] * weight:
                    continue  # whatever else counts, it is not the cheapest
                cost_s, program = self._cost(page, stay, queue)
                if (cost_s / weight, page) < least:
                    best, least = (stay.gap, page, program), (cost_s / weight, page)
            if best is None:
                return
            self._leave(*best)

    def _leave(self, gap: Gap, page: int, program: Recomputation | None) -> None:
        if program is None and page not in self._clean and not gap.is_copied:
            self._out_free_s = self._out_at_s(page) + gap.nbytes / self._given.speeds.out
        self._resident.remove(page)
        self._held -= gap.nbytes
        self._clean.discard(page)
        self._away[page] = _Absence(gap, program)

    def _stay(self, page: int) -> "_Stay | None":
        """What is known of ``page`` since it was last on the device for a reason; None if it cannot leave."""
        key = page, self._last.get(page, -1)
        if key not in self._stays:
            gap, program = self._find_gap(*key)
            program = None if page in self._rules.anchors else program
            self._stays[key] = _Stay.of(gap, program, self._given) if gap is not None else None
        return self._stays[key]

    def _find_gap(self, page: int, last: int) -> tuple[Gap | None, Recomputation | None]:
        """In which ``page`` is, and how it can be made again."""
        given = self._given
        exact = given.gaps.get((page, last))
        if exact is not None:
            return exact, given.programs.get(exact)
        uses = self._trace.uses[page]
        number = bisect_right(uses, last) - 1
        is_heir = number < 0
        if is_heir:  # the gap began in the step before
            older = given.before.get(page, -1)
            used = self._trace.uses[older] if older >= 0 else ()
            around = given.gaps.get((older, used[-1])) if used else None
        else:
            around = given.gaps.get((page, uses[number]))
        if around is None or last < 0:
            return around, None
        left = tuple((max(first, last + 1), end) for first, end in around.spans[-is_heir:] if end > last)
        gap = replace(around, page=page, after=last, spans=left) if left else None
        return gap, given.programs.get(around)

    def _least_s(self, page: int, stay: "_Stay") -> float:
        """No less does it cost to be without ``page``."""
        out_s = 0.0 if page in self._clean else stay.out_s
        return min(self._rules.price * (out_s + stay.back_s), stay.make_s)

    def _cost(self, page: int, stay: "_Stay", queue: "_Queue") -> tuple[float, Recomputation | None]:
        """Of being without ``page``, in seconds, and how it is made again if that is cheapest."""
        gap, back_s = stay.gap, stay.back_s
        out_s = 0.0 if page in self._clean else stay.out_s
        move_s = self._rules.price * (out_s + back_s)
        if self._rules.is_punctual:
            if out_s:
                move_s += max(0.0, self._out_at_s(page) + out_s - self._now_s)
            if back_s:
                end_s = self._end_s(gap)
                waiting_s = queue.nbytes_until(end_s) / self._given.speeds.back + back_s
                move_s += max(0.0, waiting_s - (end_s - self._given.starts[self._position]))
        if stay.program is None or stay.make_s >= move_s:
            return move_s, None
        make_s = stay.make_s + sum(self._again_s(other, gap) for other in stay.program.inputs)
        return (make_s, stay.program) if make_s < move_s else (move_s, None)

    def _again_s(self, page: int, gap: Gap) -> float:
        """What it takes to have the input ``page`` back for the end of ``gap``, though it is needed later itself."""
        absence = self._away.get(page)
        if absence is not None and absence.program is not None:
            return self._given.seconds(absence.program) if absence.gap.before > gap.before else 0.0
        stay = self._stay(page) if absence is None and self._rules.counts_inputs else None
        own = absence.gap if absence is not None else stay.gap if stay is not None else None
        if own is None or 0 <= own.before <= gap.before:
            return 0.0
        return self._rules.price * own.nbytes / self._given.speeds.back

    @property
    def _now_s(self) -> float:
        return self._given.starts[self._position] + self._late_s

    def _out_at_s(self, page: int) -> float:
        """When a copy of ``page`` could have begun."""
        starts, last = self._given.starts, self._last.get(page, -1)
        return max(self._out_free_s, starts[last + 1] if last >= 0 else 0.0)

    def _end_s(self, gap: Gap) -> float:
        """When ``gap`` ends, counted on into the next step if it does there."""
        return _until_end(self._given.starts, gap, self._position)

    def _worth(self, gap: Gap) -> float:
        """Of being away from now until ``gap`` ends."""
        return _until_end(self._worths, gap, self._position) - self._worths[self._position]


class _Queue:
    """What the link has to bring back.

    Args:
        copies: of each, until when, and its bytes.
    """

    def __init__(self, copies: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(copies)
        self._ends = [end_s for end_s, _ in ordered]
        self._sums = list(accumulate((nbytes for _, nbytes in ordered), initial=0))

    def nbytes_until(self, end_s: float) -> int:
        """By then."""
        return self._sums[bisect_right(self._ends, end_s)]


def _until_end(sums: list[float], gap: Gap, position: int) -> float:
    """Of ``sums`` over the operations before each, that until ``gap`` ends; from ``position``, into the next step."""
    end = gap.spans[-1][1] + 1
    return sums[end] + (sums[-1] if end <= position else 0.0)


def _until(gap: Gap, before: int) -> tuple[tuple[int, int], ...]:
    """The spans of ``gap`` if it ends before ``before``."""
    if len(gap.spans) == 2 and before <= gap.spans[1][1]:
        return gap.spans[0], *(((0, before - 1),) if before else ())
    return tuple((first, min(last, before - 1)) for first, last in gap.spans if first < before)
