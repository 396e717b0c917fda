"""What it would cost to be without a page from its last use on: a table that all walks of a step share."""

from bisect import bisect_right
from dataclasses import replace
from math import inf

import numpy as np

from torch_lms.engine import Speeds
from torch_lms.planner.gaps import Gap, actions_of, gaps_of
from torch_lms.planner.recomputation import Producers, repeat_s
from torch_lms.policy import Recomputation
from torch_lms.trace import Trace

NEVER = -1
"""The row of a page that cannot leave, or is not there."""


class Absences:
    """A row for each time that a page could be away, found by the page and the operation that used it last.

    Args:
        trace: the step. It is assumed to follow a step of the same kind.
        limit: bytes that its pages may occupy; more while an operation's own pages exceed it.
        speeds: of the link.

    Attributes:
        gaps: all gaps of the step, by page and by the operation after which they begin.
        recomputations: how to recompute the page of a gap, for the gaps where that is possible within the limit.
        used: for each operation, the pages that it uses or creates.
        rows_after: for each operation, the rows of these pages after it.
        first_rows: for each page, its row before its first use in the step.
        nbytes: for each row, as in all that follow: size of the page.
        end: the operation that ends the absence; it may be one of the next step.
        d2h_s: seconds on the link to evict the page, unless it is clean.
        h2d_s: seconds on the link to fetch it; 0 if nobody needs it again.
        recompute_s: seconds to recompute it (see ``seconds``); infinite if that is not possible.
        move_host_s, recompute_host_s: seconds that a host which runs ahead needs to move it, or to recompute it.
    """

    def __init__(self, trace: Trace, limit: int, speeds: Speeds) -> None:
        self._trace = trace
        self._most_bytes = max(limit, trace.working_set_bytes)
        self._speeds = speeds
        self.gaps = {(gap.page, gap.after): gap for gap in gaps_of(trace)}
        self._predecessors = {page.successor: n for n, page in enumerate(trace.pages) if page.successor >= 0}
        self._seconds: dict[tuple[int, ...], float] = {}
        self.recomputations: dict[Gap, Recomputation] = {}
        self._find_recomputations()

        self._rows: dict[tuple[int, int], int] = {}
        self._gap_of: list[Gap] = []
        self._recomputation_of: list[Recomputation | None] = []
        room = len(self.gaps) + len(trace.pages)
        self.nbytes = np.zeros(room)
        self.end = np.zeros(room, dtype=np.int64)
        self.d2h_s = np.zeros(room)
        self.h2d_s = np.zeros(room)
        self.recompute_s = np.zeros(room)
        self.move_host_s = np.zeros(room)
        self.recompute_host_s = np.zeros(room)
        self.used = [np.array([*op.pages, *op.creates], dtype=np.int64) for op in trace.ops]
        self.rows_after = [
            np.array([self.row(page, position) for page in (*op.pages, *op.creates)], dtype=np.int64)
            for position, op in enumerate(trace.ops)
        ]
        self.first_rows = np.array([self.row(page, -1) for page in range(len(trace.pages))], dtype=np.int64)

    def _find_recomputations(self) -> None:
        producers = Producers(self._trace)
        for gap in self.gaps.values():
            recomputation = producers.recomputation(gap)
            if recomputation is not None and self._needed_by(recomputation) <= self._most_bytes:
                self.recomputations[gap] = recomputation
                again_s = sum(self._trace.ops[op].seconds for op in recomputation.ops)
                self._seconds[recomputation.ops] = again_s + repeat_s(recomputation, self._speeds)

    def _needed_by(self, recomputation: Recomputation) -> int:
        """Bytes of pages that are there at once, at the least, when that is done for the operation that needs it."""
        there = {recomputation.page, *recomputation.inputs}
        if recomputation.before >= 0:
            there.update(self._trace.ops[recomputation.before].pages)
        return recomputation.extra_bytes + sum(self._trace.pages[page].nbytes for page in there)

    def seconds(self, recomputation: Recomputation) -> float:
        """How long ``recomputation`` takes; if nobody will need the page, to be ready for it."""
        if recomputation.before < 0:
            return repeat_s(recomputation, self._speeds) / 2
        return self._seconds[recomputation.ops]

    def host_seconds(self, recomputation: Recomputation) -> float:
        """How long a host that runs ahead is at work for it: to drop the page, to launch its operations, and to have
        the page counted as there.
        """
        launches = sum(self._trace.ops[op].launches for op in recomputation.ops) if recomputation.before >= 0 else 0
        return 2 * self._speeds.action_s + self._speeds.launch_s * launches

    # -- rows --------------------------------------------------------------------------------------------------------

    def row(self, page: int, last: int) -> int:
        """The row of ``page`` if the operation ``last`` used it last; -1: none of this step did."""
        key = page, last
        if key not in self._rows:
            gap, recomputation = self._find_gap(page, last)
            self._rows[key] = NEVER if gap is None else self._add(gap, recomputation)
        return self._rows[key]

    def gap(self, row: int) -> Gap:
        """The time that the page could be away."""
        return self._gap_of[row]

    def recomputation(self, row: int) -> Recomputation | None:
        """How it would be recomputed; None if that is not possible."""
        return self._recomputation_of[row]

    def _add(self, gap: Gap, recomputation: Recomputation | None) -> int:
        row = len(self._gap_of)
        if row == len(self.nbytes):
            self._grow()
        self._gap_of.append(gap)
        self._recomputation_of.append(recomputation)
        self.nbytes[row] = gap.nbytes
        self.end[row] = gap.spans[-1][1] + 1
        self.d2h_s[row] = 0.0 if gap.is_copied else gap.nbytes / self._speeds.d2h
        self.h2d_s[row] = gap.nbytes / self._speeds.h2d if gap.before >= 0 else 0.0
        self.recompute_s[row] = inf if recomputation is None else self.seconds(recomputation)
        self.move_host_s[row] = self._speeds.action_s * actions_of(gap)
        if recomputation is not None:
            self.recompute_host_s[row] = self.host_seconds(recomputation)
        return row

    def _grow(self) -> None:
        """Have room for as many rows again."""
        room = 2 * len(self.nbytes)
        columns = (self.nbytes, self.end, self.d2h_s, self.h2d_s, self.recompute_s)
        for column in (*columns, self.move_host_s, self.recompute_host_s):
            column.resize(room, refcheck=False)

    def _find_gap(self, page: int, last: int) -> tuple[Gap | None, Recomputation | None]:
        """The gap in which ``page`` is after the operation ``last``, and how it can be recomputed then.

        The trace knows only the uses by operations. A page that was brought back early, as an input of a recomputation,
        is in the rest of the gap that it was in.
        """
        exact = self.gaps.get((page, last))
        if exact is not None:
            return exact, self.recomputations.get(exact)
        uses = self._trace.uses[page]
        number = bisect_right(uses, last) - 1
        around = None
        if number >= 0:
            around = self.gaps.get((page, uses[number]))
            spans = around.spans if around is not None else ()
        else:  # the gap began in the step before
            predecessor = self._predecessors.get(page, -1)
            if predecessor >= 0 and self._trace.uses[predecessor]:
                around = self.gaps.get((predecessor, self._trace.uses[predecessor][-1]))
            spans = around.spans[-1:] if around is not None else ()
        if around is None:
            return None, None
        if last < 0:
            return around, None
        rest = tuple((max(first, last + 1), end) for first, end in spans if end > last)
        if not rest:
            return None, None
        return replace(around, page=page, after=last, spans=rest), self.recomputations.get(around)
