"""One walk over the operations of a step: where room is short, the page goes that is cheapest to be without."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import NamedTuple

from torch_lms.engine import Speeds
from torch_lms.planner.gaps import Gap, Span, gaps_of
from torch_lms.planner.recomputation import Producers
from torch_lms.policy import Recomputation, inputs_first
from torch_lms.trace import Trace, demand_curve

_MIN_S = 1e-9
"""Seconds that a page is away, at least: clocks may have seen none between two operations, and costs are divided by
them."""


class Choice(NamedTuple):
    """Which pages are away when.

    Attributes:
        moved: gaps in which the page is evicted, and fetched when it is needed.
        dropped: gaps in which the page is dropped, and how it is recomputed.
    """

    moved: list[Gap]
    dropped: list[tuple[Gap, Recomputation]]


class Rules(NamedTuple):
    """What counts as a cost of being without a page.

    Attributes:
        price: of a second of the link, in seconds of computing. The higher, the more is recomputed.
        is_punctual: whether it counts that a copy would be late.
        counts_inputs: whether it counts that inputs of a recomputation may be evicted themselves by then.
        anchors: pages that are never recomputed. Recomputations of other pages may begin at them.
        focus: how much more an absence counts where the step is most over the limit; 0 if all times count alike.
    """

    price: float
    is_punctual: bool = True
    counts_inputs: bool = False
    anchors: frozenset[int] = frozenset()
    focus: float = 0.0


class Walker:
    """Makes walks along ``trace`` under ``limit``. Tables that do not depend on the price are computed once.

    Args:
        trace: the step. It is assumed to follow a step of the same kind.
        limit: bytes that its pages may occupy; more while an operation's own pages exceed it.
        speeds: of the link.

    Attributes:
        starts: when each operation begins, and when the step ends, in seconds.
        gaps: all gaps of the step, by page and by the operation after which they begin.
        predecessors: for a page that lived in the step before, its number at that step's end.
        recomputations: how to recompute the page of a gap, for the gaps where that is possible.
        deaths: for each operation, the pages that die after it.
    """

    def __init__(self, trace: Trace, limit: int, speeds: Speeds) -> None:
        self.trace = trace
        self.limit = limit
        self.speeds = speeds
        self.starts = list(accumulate((op.seconds for op in trace.ops), initial=0.0))
        self.gaps = {(gap.page, gap.after): gap for gap in gaps_of(trace)}
        self.predecessors = {page.successor: number for number, page in enumerate(trace.pages) if page.successor >= 0}
        self._excess = _relative_excess(trace, limit)

        producers = Producers(trace)
        self.recomputations: dict[Gap, Recomputation] = {}
        self._seconds: dict[tuple[int, ...], float] = {}
        for gap in self.gaps.values():
            recomputation = producers.recomputation(gap)
            if recomputation is not None:
                self.recomputations[gap] = recomputation
                self._seconds[recomputation.ops] = sum(trace.ops[op].seconds for op in recomputation.ops)

        self.deaths: list[list[int]] = [[] for _ in trace.ops]
        for number, page in enumerate(trace.pages):
            if page.dead < len(trace.ops):
                self.deaths[max(0, page.dead)].append(number)

    def walk(self, rules: Rules) -> Choice:
        """Choose the pages to be without, by ``rules``."""
        walk = _Walk(self, rules)
        walk.step()
        walk.step()  # the first began with every page on the device, as no later step does
        return walk.choice()

    def worths(self, focus: float) -> list[float]:
        """The worth of having a page away from the start of the step until each operation: seconds, weighed by how far
        the step is over the limit.
        """
        weighed = (op.seconds * excess**focus for op, excess in zip(self.trace.ops, self._excess, strict=True))
        return list(accumulate(weighed, initial=0.0))

    def seconds(self, recomputation: Recomputation) -> float:
        """How long ``recomputation`` takes."""
        return self._seconds[recomputation.ops]


def _relative_excess(trace: Trace, limit: int) -> list[float]:
    """How far each operation is over ``limit`` if nothing leaves, as a share of the worst."""
    over = [max(0, nbytes - limit) for nbytes in demand_curve(trace).nbytes]
    worst = max(1, *over)
    return [nbytes / worst for nbytes in over]


@dataclass(slots=True)
class _Absence:
    """A page that is off the device since ``gap`` began: dropped if it has a ``recomputation``, else evicted."""

    gap: Gap
    recomputation: Recomputation | None


class _Stay(NamedTuple):
    """A candidate for eviction, with its costs of transfer and of recomputation.

    Attributes:
        gap: the time that it could be away, from now on.
        recomputation: how it would be recomputed; None if that is not possible or not allowed.
        d2h_s: seconds on the link to evict it, unless it is clean.
        h2d_s: seconds on the link to fetch it; 0 if nobody needs it again.
        recompute_s: seconds of ``recomputation``; infinite if there is none.
    """

    gap: Gap
    recomputation: Recomputation | None
    d2h_s: float
    h2d_s: float
    recompute_s: float

    @classmethod
    def of(cls, gap: Gap, recomputation: Recomputation | None, walker: Walker) -> "_Stay":
        """The candidate for ``gap``, its costs computed by the speeds of ``walker``."""
        d2h_s = 0.0
        if not gap.is_copied:
            d2h_s = gap.nbytes / walker.speeds.d2h
        h2d_s = 0.0
        if gap.before >= 0:
            h2d_s = gap.nbytes / walker.speeds.h2d
        recompute_s = inf
        if recomputation is not None:
            recompute_s = walker.seconds(recomputation)
        return cls(gap, recomputation, d2h_s, h2d_s, recompute_s)


class _Walk:
    """The state of one walk: which pages are on the device at the operation that it has reached, and on a virtual
    clock, how late the program and the link to the host are.
    """

    def __init__(self, walker: Walker, rules: Rules) -> None:
        self._walker = walker
        self._trace = walker.trace
        self._pages = walker.trace.pages
        self._rules = rules
        self._worths = walker.worths(rules.focus)

        self._resident = {number for number, page in enumerate(self._pages) if page.born < 0}
        self._held = sum(self._pages[number].nbytes for number in self._resident)
        self._away: dict[int, _Absence] = {}
        self._clean: set[int] = set()
        self._last: dict[int, int] = {}  # for each page, the operation of this step that used it last

        self._position = 0
        self._late_s = 0.0  # seconds of recomputation so far in this step
        self._d2h_free_s = 0.0  # when the link has made all copies to the host that were asked for
        self._stays: dict[tuple[int, int], _Stay | None] = {}

        self._moved: list[Gap] = []
        self._dropped: list[tuple[Gap, Recomputation]] = []

    def step(self) -> None:
        """Walk over all operations once. What was chosen in an earlier step is forgotten."""
        self._moved = []
        self._dropped = []
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
            for page in self._walker.deaths[position]:
                self._die(page)
        self._end_step()

    def choice(self) -> Choice:
        """The pages that were away in the last step, and those that still are at its end."""
        still_away = [absence.gap for absence in self._away.values()]
        found = {(gap.page, gap.after): gap for gap in (*still_away, *self._moved)}
        return Choice(list(found.values()), self._dropped)

    def _end_step(self) -> None:
        """Give the pages that live on the numbers that they have in the next step, and begin its clock at 0."""
        for page in [*self._resident, *self._away]:
            if self._pages[page].successor < 0:
                self._die(page)
        successors = {number: page.successor for number, page in enumerate(self._pages)}
        self._resident = {successors[page] for page in self._resident}
        self._away = {successors[page]: absence for page, absence in self._away.items()}
        self._clean = {successors[page] for page in self._clean if successors[page] >= 0}
        self._last.clear()
        self._d2h_free_s -= self._walker.starts[-1] + self._late_s
        self._late_s = 0.0

    def _die(self, page: int) -> None:
        if page in self._resident:
            self._resident.remove(page)
            self._held -= self._pages[page].nbytes
        elif page in self._away:
            self._end_absence(page, before=-1)
        self._clean.discard(page)

    # -- fetching and recomputing ------------------------------------------------------------------------------------

    def _bring(self, page: int, pinned: set[int]) -> None:
        """Have ``page`` on the device, and before that the inputs of its recomputation, in the order of the pager."""
        if page not in self._away:
            return
        for chain in inputs_first(page, self._missing_input):
            held = set(pinned)
            for waiting in chain:
                recomputation = self._away[waiting].recomputation
                if recomputation is not None:
                    held.update(recomputation.inputs)
            wanted = chain[-1]
            self._restore(wanted, self._away[wanted].recomputation, held)

    def _missing_input(self, page: int) -> int | None:
        """An input of the recomputation of ``page`` that is away; None if there is none."""
        recomputation = self._away[page].recomputation
        if recomputation is not None:
            for other in recomputation.inputs:
                if other in self._away:
                    return other
        return None

    def _restore(self, page: int, recomputation: Recomputation | None, pinned: set[int]) -> None:
        """Fetch or recompute ``page``, whose inputs are there."""
        nbytes = self._pages[page].nbytes
        if recomputation is None:
            self._make_room(nbytes, pinned)
            self._clean.add(page)
        else:
            self._make_room(nbytes + recomputation.extra_bytes, pinned)
            self._late_s += self._walker.seconds(recomputation)
        self._end_absence(page, before=self._position)
        self._resident.add(page)
        self._held += nbytes
        self._last[page] = self._position

    def _end_absence(self, page: int, before: int) -> None:
        """Note that ``page`` was away until the operation ``before``; -1: until it died."""
        absence = self._away.pop(page)
        gap = absence.gap
        if before >= 0 and before != gap.before:
            gap = replace(gap, before=before, spans=_shortened(gap, before))
        if not gap.spans:
            return
        if absence.recomputation is None:
            self._moved.append(gap)
        else:
            self._dropped.append((gap, absence.recomputation._replace(after=gap.after, before=before)))

    # -- evicting and dropping ---------------------------------------------------------------------------------------

    def _make_room(self, nbytes: int, pinned: set[int]) -> None:
        """Evict or drop pages, but none of ``pinned``, until ``nbytes`` more are within the limit or none is left."""
        while self._held + nbytes > self._walker.limit:
            fetches = _FetchQueue(
                (self._end_s(absence.gap), absence.gap.nbytes)
                for absence in self._away.values()
                if absence.recomputation is None
            )
            best = None
            least = (inf, -1)
            for page in self._resident - pinned:
                stay = self._stay(page)
                if stay is None:
                    continue
                weight = stay.gap.nbytes * max(self._worth(stay.gap), _MIN_S)
                if self._least_cost_s(page, stay) > least[0] * weight:
                    continue  # it cannot be the cheapest, whatever else its costs are
                cost_s, recomputation = self._cost(page, stay, fetches)
                if (cost_s / weight, page) < least:
                    least = (cost_s / weight, page)
                    best = (stay.gap, page, recomputation)
            if best is None:
                return
            self._remove(*best)

    def _remove(self, gap: Gap, page: int, recomputation: Recomputation | None) -> None:
        """Drop ``page`` if it has a ``recomputation``, else evict it."""
        if recomputation is None and page not in self._clean and not gap.is_copied:
            self._d2h_free_s = self._d2h_begins_s(page) + gap.nbytes / self._walker.speeds.d2h
        self._resident.remove(page)
        self._held -= gap.nbytes
        self._clean.discard(page)
        self._away[page] = _Absence(gap, recomputation)

    def _stay(self, page: int) -> _Stay | None:
        """What being without ``page`` would cost; None if it cannot leave. It depends on the last use alone."""
        key = page, self._last.get(page, -1)
        if key not in self._stays:
            gap, recomputation = self._find_gap(*key)
            if page in self._rules.anchors:
                recomputation = None
            stay = None
            if gap is not None:
                stay = _Stay.of(gap, recomputation, self._walker)
            self._stays[key] = stay
        return self._stays[key]

    def _find_gap(self, page: int, last: int) -> tuple[Gap | None, Recomputation | None]:
        """The gap in which ``page`` is after the operation ``last``, and how it can be recomputed then.

        The trace knows only the uses by operations. A page that was brought back early, as an input of a recomputation,
        is in the rest of the gap that it was in.
        """
        walker = self._walker
        exact = walker.gaps.get((page, last))
        if exact is not None:
            return exact, walker.recomputations.get(exact)
        uses = self._trace.uses[page]
        number = bisect_right(uses, last) - 1
        around = None
        if number >= 0:
            around = walker.gaps.get((page, uses[number]))
            spans = around.spans if around is not None else ()
        else:  # the gap began in the step before
            predecessor = walker.predecessors.get(page, -1)
            if predecessor >= 0 and self._trace.uses[predecessor]:
                around = walker.gaps.get((predecessor, self._trace.uses[predecessor][-1]))
            spans = around.spans[-1:] if around is not None else ()
        if around is None:
            return None, None
        if last < 0:
            return around, None
        rest = tuple((max(first, last + 1), end) for first, end in spans if end > last)
        if not rest:
            return None, walker.recomputations.get(around)
        return replace(around, page=page, after=last, spans=rest), walker.recomputations.get(around)

    # -- costs -------------------------------------------------------------------------------------------------------

    def _least_cost_s(self, page: int, stay: _Stay) -> float:
        """A lower bound of ``_cost``, which takes less time to compute."""
        d2h_s = 0.0 if page in self._clean else stay.d2h_s
        return min(self._rules.price * (d2h_s + stay.h2d_s), stay.recompute_s)

    def _cost(self, page: int, stay: _Stay, fetches: "_FetchQueue") -> tuple[float, Recomputation | None]:
        """What being without ``page`` costs, in seconds, and its recomputation if that is cheaper than moving it."""
        d2h_s = 0.0 if page in self._clean else stay.d2h_s
        h2d_s = stay.h2d_s
        move_s = self._rules.price * (d2h_s + h2d_s)
        if self._rules.is_punctual:
            # Seconds by which the copies would be late count whole, whatever the price.
            if d2h_s:
                move_s += max(0.0, self._d2h_begins_s(page) + d2h_s - self._now_s)
            if h2d_s:
                end_s = self._end_s(stay.gap)
                waiting_s = fetches.nbytes_until(end_s) / self._walker.speeds.h2d + h2d_s
                move_s += max(0.0, waiting_s - (end_s - self._walker.starts[self._position]))
        if stay.recomputation is None or stay.recompute_s >= move_s:
            return move_s, None
        inputs_s = sum(self._input_s(other, stay.gap) for other in stay.recomputation.inputs)
        recompute_s = stay.recompute_s + inputs_s
        if recompute_s >= move_s:
            return move_s, None
        return recompute_s, stay.recomputation

    def _input_s(self, page: int, gap: Gap) -> float:
        """Seconds to have ``page``, an input of a recomputation, there at the end of ``gap``; 0 if it is there anyway,
        since it is needed no later itself.
        """
        absence = self._away.get(page)
        if absence is not None:
            own_gap = absence.gap
            if absence.recomputation is not None:
                is_needed_later = own_gap.before > gap.before
                return self._walker.seconds(absence.recomputation) if is_needed_later else 0.0
        elif self._rules.counts_inputs:
            stay = self._stay(page)
            if stay is None:
                return 0.0
            own_gap = stay.gap
        else:
            return 0.0
        if 0 <= own_gap.before <= gap.before:
            return 0.0
        return self._rules.price * own_gap.nbytes / self._walker.speeds.h2d

    # -- times -------------------------------------------------------------------------------------------------------

    @property
    def _now_s(self) -> float:
        return self._walker.starts[self._position] + self._late_s

    def _d2h_begins_s(self, page: int) -> float:
        """When the copy of ``page`` to the host could have begun: after its last use, and when the link was free."""
        starts = self._walker.starts
        last = self._last.get(page, -1)
        idle_since_s = starts[last + 1] if last >= 0 else 0.0
        return max(self._d2h_free_s, idle_since_s)

    def _end_s(self, gap: Gap) -> float:
        """When ``gap`` ends. If that is in the next step, its seconds are added to those of this one."""
        return _until_end(self._walker.starts, gap, self._position)

    def _worth(self, gap: Gap) -> float:
        """The worth of being away from now until ``gap`` ends."""
        return _until_end(self._worths, gap, self._position) - self._worths[self._position]


class _FetchQueue:
    """Fetches that the link has to make, ordered by when they have to be done.

    Args:
        fetches: for each, the time when its page is needed, and the bytes.
    """

    def __init__(self, fetches: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(fetches)
        self._ends = [end_s for end_s, _ in ordered]
        self._sums = list(accumulate((nbytes for _, nbytes in ordered), initial=0))

    def nbytes_until(self, end_s: float) -> int:
        """The bytes of all fetches that have to be done by ``end_s``."""
        return self._sums[bisect_right(self._ends, end_s)]


def _until_end(sums: list[float], gap: Gap, position: int) -> float:
    """The one of ``sums``, which are counted up to each operation, at the end of ``gap``. If the gap ends in the step
    after that of ``position``, the sum of a whole step is added.
    """
    end = gap.spans[-1][1] + 1
    return sums[end] + (sums[-1] if end <= position else 0.0)


def _shortened(gap: Gap, before: int) -> tuple[Span, ...]:
    """The spans of ``gap`` if it ends before the operation ``before`` already."""
    if len(gap.spans) == 2 and before <= gap.spans[1][1]:
        if before == 0:
            return gap.spans[:1]
        return gap.spans[0], (0, before - 1)
    return tuple((first, min(last, before - 1)) for first, last in gap.spans if first < before)
