"""One walk over the operations of a step: where room is short, the page goes that is cheapest to be without."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_lms.engine import Speeds
from torch_lms.planner.absences import NEVER, Absences
from torch_lms.planner.gaps import Gap, Span
from torch_lms.policy import Recomputation, inputs_first
from torch_lms.trace import Trace, demand_curve

_MIN_S = 1e-9
"""Seconds that a page is away, at least: clocks may have seen none between two operations, and costs are divided by
them."""


_MAX_RESTORED = 4
"""Pages that a walk may bring back for each operation, on the average. Where pages are recomputed from pages that have
to be recomputed themselves, each time anew, it may be forty: that takes long to walk, and longer to carry out. Of the
plans for the steps of benchmarks/simulated.py, at k = 2 to 8 on a V100 and an H200, none was made by a walk with more
than 1.1."""


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
        drops_unneeded: whether pages that nobody needs again are dropped, as far as they can be, and not evicted.
        host_price: of a second of a host that runs ahead, in seconds of computing.
    """

    price: float
    is_punctual: bool = True
    counts_inputs: bool = False
    anchors: frozenset[int] = frozenset()
    focus: float = 0.0
    drops_unneeded: bool = True
    host_price: float = 0.0


class Walker:
    """Makes walks along ``trace`` under ``limit``. Tables that do not depend on the price are computed once.

    Args:
        trace: the step. It is assumed to follow a step of the same kind.
        limit: bytes that its pages may occupy; more while an operation's own pages exceed it.
        speeds: of the link.

    Attributes:
        absences: what it would cost to be without each page, from each of its uses on.
        deaths: for each operation, the pages that die after it.
    """

    def __init__(self, trace: Trace, limit: int, speeds: Speeds) -> None:
        self.trace = trace
        self.limit = limit
        self.speeds = speeds
        self.absences = Absences(trace, limit, speeds)
        self._excess = _relative_excess(trace, limit)
        self._walk: _Walk | None = None
        self.deaths: list[list[int]] = [[] for _ in trace.ops]
        for number, page in enumerate(trace.pages):
            if page.dead < len(trace.ops):
                self.deaths[max(0, page.dead)].append(number)

    @property
    def recomputations(self) -> Mapping[Gap, Recomputation]:
        """How to recompute the page of a gap, for the gaps where that is possible."""
        return self.absences.recomputations

    def walk(self, rules: Rules) -> Choice | None:
        """Choose the pages to be without, by ``rules``. None if too many were brought back, time and again."""
        self._walk = _Walk(self)
        first = self.walk_on(rules)  # it begins with every page on the device, as no later step does
        return None if first is None else self.walk_on(rules)

    def walk_on(self, rules: Rules) -> Choice | None:
        """The same, after a step of the walk before: half the time. By other rules other pages may have been away at
        the end of that step.
        """
        if self._walk is None:
            return self.walk(rules)
        if self._walk.step(rules):
            return self._walk.choice()
        self._walk = None  # the next one begins anew
        return None

    def worths(self, focus: float) -> list[float]:
        """The worth of having a page away from the start of the step until each operation: seconds, weighed by how far
        the step is over the limit.
        """
        weighed = (op.seconds * excess**focus for op, excess in zip(self.trace.ops, self._excess, strict=True))
        return list(accumulate(weighed, initial=0.0))

    def seconds(self, recomputation: Recomputation) -> float:
        """How long ``recomputation`` takes."""
        return self.absences.seconds(recomputation)


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


class _Walk:
    """The state of one walk: which pages are on the device at the operation that it has reached, and on a virtual
    clock, how late the program and the link to the host are.
    """

    def __init__(self, walker: Walker) -> None:
        self._walker = walker
        self._trace = walker.trace
        self._pages = walker.trace.pages
        self._table = walker.absences
        self._starts = np.array(walker.trace.starts_s)

        self._resident: set[int] = set()
        self._held = 0
        self._away: dict[int, _Absence] = {}
        self._is_clean = np.zeros(len(self._pages), dtype=bool)
        self._idle_since_s = np.zeros(len(self._pages))  # when the operation that used the page last ended
        self._rows = np.full(len(self._pages), NEVER)  # what it would cost to be without the page now
        self._begin_step()
        # For each operation, the bytes to be fetched from the host by its beginning.
        self._fetched_by = np.zeros(len(self._trace.ops) + 1, dtype=np.int64)

        self._position = 0
        self._late_s = 0.0  # seconds of recomputation so far in this step
        self._d2h_free_s = 0.0  # when the link has made all copies to the host that were asked for

        self._moved: list[Gap] = []
        self._dropped: list[tuple[Gap, Recomputation]] = []

    def step(self, rules: Rules) -> bool:
        """Walk over all operations once, by ``rules``. What was chosen in an earlier step is forgotten. False if it was
        given up on the way (``_MAX_RESTORED``): then this is of no use any more.
        """
        self._rules = rules
        self._restored = 0
        self._worths = np.array(self._walker.worths(rules.focus))
        self._is_anchor = np.zeros(len(self._pages), dtype=bool)
        self._is_anchor[list(rules.anchors)] = True
        self._moved = []
        self._dropped = []
        limit = self._walker.limit
        for position, op in enumerate(self._trace.ops):
            self._position = position
            if not self._away.keys().isdisjoint(op.pages):
                pinned = set(op.pages)
                for page in op.pages:
                    self._bring(page, pinned)
                if self._restored > _MAX_RESTORED * len(self._trace.ops):
                    return False
            if self._held + op.new_bytes > limit:
                self._make_room(op.new_bytes, set(op.pages))
            for page in op.creates:
                self._resident.add(page)
                self._held += self._pages[page].nbytes
            if op.writes:
                self._is_clean[list(op.writes)] = False
            used = self._table.used[position]
            self._rows[used] = self._table.rows_after[position]
            self._idle_since_s[used] = self._starts[position + 1]
            for page in self._walker.deaths[position]:
                self._die(page)
        self._end_step()
        return True

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
        was_clean = self._is_clean
        self._is_clean = np.zeros_like(was_clean)
        for page in np.flatnonzero(was_clean).tolist():
            if self._pages[page].successor >= 0:
                self._is_clean[self._pages[page].successor] = True
        self._resident = {self._pages[page].successor for page in self._resident}
        self._away = {self._pages[page].successor: absence for page, absence in self._away.items()}
        self._begin_step()
        self._idle_since_s[:] = 0.0
        self._d2h_free_s -= self._trace.starts_s[-1] + self._late_s
        self._late_s = 0.0

    def _begin_step(self) -> None:
        """What did not live on is given anew, as a batch is. No operation of this step has used a page yet."""
        for number, page in enumerate(self._pages):
            if page.born < 0 and number not in self._resident and number not in self._away:
                self._resident.add(number)
                self._held += page.nbytes
        resident = list(self._resident)
        self._rows[:] = NEVER
        self._rows[resident] = self._table.first_rows[resident]

    def _die(self, page: int) -> None:
        if page in self._resident:
            self._resident.remove(page)
            self._held -= self._pages[page].nbytes
            self._rows[page] = NEVER
        elif page in self._away:
            self._end_absence(page, before=-1)
        self._is_clean[page] = False

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
        self._restored += 1
        if recomputation is None:
            self._make_room(nbytes, pinned)
            self._is_clean[page] = True
        else:
            self._make_room(nbytes + recomputation.extra_bytes, pinned)
            self._late_s += self._walker.seconds(recomputation)
        self._end_absence(page, before=self._position)
        self._resident.add(page)
        self._held += nbytes
        self._rows[page] = self._table.row(page, self._position)
        self._idle_since_s[page] = self._starts[self._position + 1]

    def _end_absence(self, page: int, before: int) -> None:
        """Note that ``page`` was away until the operation ``before``; -1: until it died."""
        absence = self._away.pop(page)
        gap = absence.gap
        if absence.recomputation is None:
            self._fetched_by[gap.spans[-1][1] + 1] -= gap.nbytes
        if before >= 0 and before != gap.before:
            gap = replace(gap, before=before, spans=_shortened(gap, before, page == gap.page and before > gap.after))
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
            may_leave = self._rows != NEVER
            may_leave[list(pinned)] = False
            pages = np.flatnonzero(may_leave)
            if not len(pages):
                return
            self._remove(*self._cheapest(pages))

    def _cheapest(self, pages: npt.NDArray[np.int64]) -> tuple[Gap, int, Recomputation | None]:
        """The one of ``pages`` that costs least for its bytes and for the worth of its absence, and how it leaves."""
        rows = self._rows[pages]
        weights = self._table.nbytes[rows] * np.maximum(self._worths_until(rows), _MIN_S)
        move_s = self._move_s(pages, rows)
        is_evicted = self._is_anchor[pages]
        if not self._rules.drops_unneeded:
            is_evicted = is_evicted | (self._table.h2d_s[rows] == 0)
        recompute_s = np.where(is_evicted, inf, self._table.recompute_s[rows])
        if self._rules.host_price:
            recompute_s = recompute_s + self._rules.host_price * self._table.recompute_host_s[rows]
        # What the inputs of a recomputation cost is only looked up where it decides.
        is_bound = recompute_s < move_s
        ratios = np.minimum(move_s, recompute_s) / weights
        while is_bound[best := int(np.argmin(ratios))]:
            gap, recomputation = self._table.gap(int(rows[best])), self._table.recomputation(int(rows[best]))
            assert recomputation is not None
            with_inputs_s = recompute_s[best] + sum(self._input_s(other, gap) for other in recomputation.inputs)
            is_bound[best] = False
            recompute_s[best] = with_inputs_s
            ratios[best] = min(move_s[best], with_inputs_s) / weights[best]
        row = int(rows[best])
        drops = recompute_s[best] < move_s[best]
        return self._table.gap(row), int(pages[best]), self._table.recomputation(row) if drops else None

    def _remove(self, gap: Gap, page: int, recomputation: Recomputation | None) -> None:
        """Drop ``page`` if it has a ``recomputation``, else evict it."""
        if recomputation is None:
            self._fetched_by[gap.spans[-1][1] + 1] += gap.nbytes
            if not self._is_clean[page] and not gap.is_copied:
                begins_s = max(self._d2h_free_s, float(self._idle_since_s[page]))
                self._d2h_free_s = begins_s + gap.nbytes / self._walker.speeds.d2h
        self._resident.remove(page)
        self._rows[page] = NEVER
        self._held -= gap.nbytes
        self._is_clean[page] = False
        self._away[page] = _Absence(gap, recomputation)

    # -- costs -------------------------------------------------------------------------------------------------------

    def _move_s(self, pages: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """What it costs to evict each of ``pages`` and to fetch it, in seconds."""
        d2h_s = np.where(self._is_clean[pages], 0.0, self._table.d2h_s[rows])
        h2d_s = self._table.h2d_s[rows]
        costs = self._rules.price * (d2h_s + h2d_s)
        if self._rules.host_price:
            costs += self._rules.host_price * self._table.move_host_s[rows]
        if self._rules.is_punctual:
            # Seconds by which the copies would be late count whole, whatever the price.
            starts, position = self._starts, self._position
            begins_s = np.maximum(self._d2h_free_s, self._idle_since_s[pages])
            d2h_late_s = begins_s + d2h_s - (starts[position] + self._late_s)
            costs += np.where(d2h_s > 0, np.maximum(d2h_late_s, 0.0), 0.0)
            ends = self._table.end[rows]
            is_in_next_step = ends <= position
            waiting_bytes = self._fetched_by.cumsum()
            before = waiting_bytes[ends] - waiting_bytes[position] + np.where(is_in_next_step, waiting_bytes[-1], 0)
            h2d_late_s = before / self._walker.speeds.h2d + h2d_s - (self._starts_of(ends) - starts[position])
            costs += np.where(h2d_s > 0, np.maximum(h2d_late_s, 0.0), 0.0)
        return costs

    def _starts_of(self, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """When the operations ``ends`` begin. Those up to the present one are of the next step."""
        return self._starts[ends] + np.where(ends <= self._position, self._starts[-1], 0.0)

    def _worths_until(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The worths of being away from now until the absences of ``rows`` end."""
        ends = self._table.end[rows]
        in_next_step = np.where(ends <= self._position, self._worths[-1], 0.0)
        worths: npt.NDArray[np.float64] = self._worths[ends] + in_next_step - self._worths[self._position]
        return worths

    def _input_s(self, page: int, gap: Gap) -> float:
        """Seconds to have ``page``, an input of a recomputation, there at the end of ``gap``; 0 if it is there anyway,
        since it is needed no later itself.
        """
        if gap.before < 0:
            return 0.0
        absence = self._away.get(page)
        if absence is not None:
            own_gap = absence.gap
            if absence.recomputation is not None:
                is_needed_later = own_gap.before > gap.before
                return self._walker.seconds(absence.recomputation) if is_needed_later else 0.0
        elif self._rules.counts_inputs:
            row = int(self._rows[page])
            if row == NEVER:
                return 0.0
            own_gap = self._table.gap(row)
        else:
            return 0.0
        if 0 <= own_gap.before <= gap.before:
            return 0.0
        return self._rules.price * own_gap.nbytes / self._walker.speeds.h2d


def _shortened(gap: Gap, before: int, is_same_step: bool) -> tuple[Span, ...]:
    """The spans of ``gap`` if it ends before the operation ``before`` already, of the step in which it began or of the
    next.
    """
    if len(gap.spans) == 2 and not is_same_step and before <= gap.spans[1][1]:
        if before == 0:
            return gap.spans[:1]
        return gap.spans[0], (0, before - 1)
    spans = gap.spans[:1] if is_same_step else gap.spans
    return tuple((first, min(last, before - 1)) for first, last in spans if first < before)
