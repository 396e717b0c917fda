"""What happened in one step: written as it happens, read when somebody asks for a trace or a timeline."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

from torch_lms.policy import PlanCursor
from torch_lms.residency import PageId
from torch_lms.timeline import Copies, Lane, Level, Lives, Span, Timeline, with_pages_waited_for
from torch_lms.trace import Living, Recorder, Trace, TracedOp

_BEGINS, _ACCESS, _READY, _ENDS, _CREATED, _DIED, _PAUSED, _SPENT, _PASSED, _FOUND = range(10)


class Journal(Protocol):
    """What happened while operations followed a plan, and Python was not asked."""

    def events(self) -> list[tuple[int, int, int, float]]:
        """Each event: its kind, as below; which page, or which position in the plan; bytes; when, in seconds."""

    def moments(self) -> list[tuple[Any, Any]]:
        """From when to when pages moved, for each such event, if the program is done later than the host asks for
        it; else nothing.
        """

    def begun(self) -> list[Any]:
        """When operations began that had no plan, by their positions; None where that was not noted. Else nothing."""

    def marks(self) -> list[Any]:
        """As ``moments``, until when time was spent."""


_OP_BEGAN, _OP_USED, _OP_CREATED, _OP_WROTE, _OP_ENDED, _PAGE_DIED, _PAGES_MOVED, _SPENT_SO_FAR = range(8)


class Follower(Protocol):
    """Wants to hear what happens in a step."""

    def op_begins(self, name: str, pages: tuple[PageId, ...]) -> object:
        """An operation begins on these pages."""

    def created(self, page: PageId, nbytes: int) -> None:
        """It created a page."""

    def found(self, page: PageId, nbytes: int) -> None:
        """What is no part of the step created one."""

    def died(self, page: PageId) -> None:
        """The storage of ``page`` is gone."""


class Stretch(NamedTuple):
    """Operations that passed, one after the other, and Python was not asked.

    Attributes:
        ops: how many.
        journal: of them.
        since: when they began, if the program's work is done later than the host asks for it; else None.
    """

    ops: int
    journal: Journal
    since: Any


@dataclass(slots=True)
class _Running:
    """The operation that runs, or ran last; none without a name.

    Attributes:
        has_ended: whether it is over, though the program may still be busy with what follows from it.
        paused_s: from when to when the program waited after that.
    """

    name: str = ""
    start_s: float = 0.0
    has_ended: bool = False
    paused_s: tuple[float, float] | None = None

    def pause(self, pause: Span) -> None:
        """The program waited."""
        if self.has_ended:
            first = self.paused_s[0] if self.paused_s is not None else pause.start_s
            self.paused_s = first, pause.end_s

    def span(self, next_s: float) -> list[Span]:
        """Its span, the next operation beginning at ``next_s``: what the program did until then is the operation's. If
        it did nothing but wait, the span ends where the wait began.
        """
        if not self.name:
            return []
        waited_to_the_end = self.paused_s is not None and self.paused_s[1] == next_s
        end_s = self.paused_s[0] if self.paused_s is not None and waited_to_the_end else next_s
        return [Span(Lane.COMPUTE, self.name, self.start_s, end_s)]


class StepRecord:
    """One step.

    To write costs an ``append`` and no more: a step that follows a plan is never read unless the user asks for it.
    Moments are what one clock says, in whatever form it has them (``engine.Mark``), until they are read.

    Args:
        living: the pages when the step begins.
        before: the record of the step before. A page that was born there is the predecessor of whatever is born at the
            same place in this step: a gradient, say, that lives until the next step clears it.

    Attributes:
        op_count: operations so far.
        accesses: uses so far by what not every such step has.
        ops_by_outlook: those among them that had no plan, and about which Python was not asked.
        living: the pages when the step began.
    """

    def __init__(self, living: list[Living], before: "StepRecord | None" = None) -> None:
        self.living = living
        self._before = before
        if before is not None:
            before._before = None  # else every record would hold all that came before
        self._events: list[tuple[Any, ...]] = []
        self._append = self._events.append
        self._transfers: list[Copies] = []
        self.op_count = 0
        self.accesses = 0
        self.ops_by_outlook = 0
        self._end: Any = None
        self._policy = ""
        self._read: Recorder | None = None

    # -- writing -----------------------------------------------------------------------------------------------------

    def begins(self, name: str, pages: tuple[PageId, ...], new_bytes: int, is_repeatable: bool, now: Any) -> None:
        """An operation begins that every such step has. ``is_repeatable``: run again, it gives the same bits."""
        self.op_count += 1
        self._append((_BEGINS, name, pages, new_bytes, is_repeatable, now))

    def access_begins(self, now: Any) -> None:
        """Pages are used by what not every such step has."""
        self.accesses += 1
        self._append((_ACCESS, now))

    def ready(self, name: str, now: Any, resident: int, host: int, disk: int) -> None:
        """An operation has all that it needs, and runs; there are so many bytes of pages in each tier."""
        self._append((_READY, name, now, resident, host, disk))

    def ends(self, written: tuple[PageId, ...]) -> None:
        """The operation ended; it wrote ``written``."""
        self._append((_ENDS, written))

    def passed(self, ops: Sequence[TracedOp], stretch: Stretch, now: Any, host: int, disk: int) -> None:
        """Operations passed until now; at the positions that the journal gives they are ``ops``."""
        self.op_count += stretch.ops
        between = None if stretch.since is None else (stretch.since, now)
        self._append((_PASSED, ops, stretch.journal, host, disk, between))

    def created(self, page: PageId, nbytes: int, unpageable: str) -> None:
        """The operation that runs, or ran last, created a page."""
        self._append((_CREATED, page, nbytes, unpageable))

    def found(self, page: PageId, nbytes: int, unpageable: str) -> None:
        """What is no part of the step created a page."""
        self._append((_FOUND, page, nbytes, unpageable))

    def died(self, page: PageId) -> None:
        """Its storage is gone."""
        self._append((_DIED, page))

    def paused(self, start: Any, end: Any) -> None:
        """Pages moved meanwhile, and the program waited."""
        self._append((_PAUSED, start, end))

    def spent(self, name: str, start: Any, end: Any, nbytes: int = 0, page: PageId = -1) -> None:
        """What a part of a pause was spent on."""
        self._append((_SPENT, name, start, end, nbytes, page))

    def add_transfers(self, transfers: Copies) -> None:
        """What was copied beside the program."""
        self._transfers.append(transfers)

    def finish(self, now: Any, policy: str = "") -> None:
        """The step ended, under ``policy``."""
        self._end = now
        self._policy = policy

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def signature(self) -> int:
        """Equal for steps of one kind: the same operations on pages of the same sizes."""
        return self._recorder().signature

    @property
    def structure(self) -> int:
        """Equal for steps of the same operations on the same pages, whatever their sizes."""
        return self._recorder().structure

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of its pages: see ``Trace.sizes``."""
        return self._recorder().sizes

    @property
    def numbers(self) -> dict[PageId, int]:
        """The number in the trace of each page that lived when the step ended."""
        return self._recorder().numbers

    def trace(self, seconds: Callable[[Any], float], sizes: Sequence[int] | None = None) -> Trace:
        """The whole step, which is over.

        Args:
            seconds: tells them from moments.
            sizes: bytes that its pages are to have in the trace, as in ``Trace.sizes``; None for those that they had.
        """
        return self._recorder().trace(partial(_when, seconds), sizes)

    def timeline(
        self, seconds: Callable[[Any], float], shortest_stall_s: float = 0.0, is_synchronous: bool = False
    ) -> Timeline:
        """When what happened.

        Args:
            seconds: tells them from moments.
            shortest_stall_s: pauses that were no longer are no stalls.
            is_synchronous: whether an operation's work is over when it ends. On a device that runs behind the host it
                is not, and the time until the next operation is all counted as its own.
        """
        seconds = partial(_when, seconds)
        spans: list[Span] = []
        levels: list[Level] = []
        lives = Lives((page.id, page.nbytes) for page in self.living)
        running = _Running()
        for kind, *what in self._all_events():
            if kind == _READY:
                name, start, *nbytes = what
                running = _Running(name, seconds(start))
                lives.op_runs(running.start_s)
                levels.append(Level(running.start_s, *nbytes))
            elif kind == _ENDS:
                running.has_ended = is_synchronous
            elif kind == _SPENT:
                spent_on, start, end, nbytes_moved, page = what
                pause = Span(Lane.COMPUTE, spent_on, seconds(start), seconds(end), nbytes_moved, page)
                running.pause(pause)
                spans.append(pause)
            elif kind in (_BEGINS, _ACCESS):
                now_s = seconds(what[-1])
                spans += running.span(now_s)
                running = _Running()
                if kind == _BEGINS:
                    lives.op_begins(what[0], what[1], now_s)
            elif kind in (_CREATED, _FOUND):
                lives.created(what[0], what[1])
            elif kind == _DIED:
                lives.died(what[0])
        end_s = seconds(self._end)
        spans += running.span(end_s)
        kept = [span for span in spans if span.name != "stall" or span.end_s - span.start_s > shortest_stall_s]
        pages = lives.at_end(end_s)
        kept += chain.from_iterable(copies.spans() for copies in self._transfers)
        return Timeline(with_pages_waited_for(tuple(kept), pages), tuple(levels), pages, self._policy)

    def retrace(self, cursor: PlanCursor) -> None:
        """Tell ``cursor`` all that happened in the step so far, until it diverges."""
        for event in self._all_events():
            _tell(cursor, event)
            if cursor.has_diverged:
                return

    def tell_of_stretch(self, follower: "Follower") -> None:
        """Tell ``follower`` of the operations that passed, about which this heard last."""
        for event in _told(*self._events[-1][1:]):
            _tell(follower, event)

    def _all_events(self) -> Iterator[tuple[Any, ...]]:
        """Also those of the journals."""
        for event in self._events:
            if event[0] == _PASSED:
                yield from _told(*event[1:])
            else:
                yield event

    def _recorder(self) -> Recorder:
        """The step as the trace's recorder knows it, replayed once."""
        if self._read is None:
            before = None if self._before is None else self._before._births_alone()
            self._read = self._replayed(before)
        return self._read

    def _births_alone(self) -> Recorder:
        """Replayed without its own predecessor: where its pages were born is all that a successor asks."""
        return self._read or self._replayed(None)

    def _replayed(self, before: Recorder | None) -> Recorder:
        recorder = Recorder(self.living, before)
        found: dict[PageId, Living] = {}  # that no operation of the step has used so far
        for kind, *what in self._all_events():
            if kind == _FOUND:
                found[what[0]] = Living(*what)
            elif kind == _BEGINS:
                name, pages, new_bytes, is_repeatable, now = what
                for page in pages:
                    if page in found:
                        recorder.found(found.pop(page))
                recorder.begins(name, pages, new_bytes, now, is_repeatable)
            elif kind == _CREATED:
                recorder.created(Living(*what))
            elif kind == _ENDS:
                recorder.wrote(what[0])
            elif kind == _DIED and found.pop(what[0], None) is None:
                recorder.died(what[0])
            elif kind == _PAUSED:
                recorder.paused(*what)
        recorder.finish(self._end)
        return recorder


def _tell(follower: Follower, event: tuple[Any, ...]) -> None:
    kind, *what = event
    if kind == _BEGINS:
        follower.op_begins(what[0], what[1])
    elif kind == _CREATED:
        follower.created(what[0], what[1])
    elif kind == _FOUND:
        follower.found(what[0], what[1])
    elif kind == _DIED:
        follower.died(what[0])


class _Share(NamedTuple):
    """A moment between two others, at a share of the time between them."""

    start: Any
    end: Any
    share: float


def _when(seconds: Callable[[Any], float], moment: Any) -> float:
    if not isinstance(moment, _Share):
        return seconds(moment)
    start_s, end_s = seconds(moment.start), seconds(moment.end)
    return start_s + moment.share * (end_s - start_s)


def _times(ops: Sequence[TracedOp], journal: Journal, between: tuple[Any, Any] | None) -> Iterator[tuple[Any, Any]]:
    """Of each operation of a journal: when it began, and when the pages were there that moved for it.

    That is as the journal says, or operations share the time ``between`` two moments as they do in the plan.
    """
    began: list[tuple[int, float, float | None]] = []
    for kind, which, _, at_s in journal.events():
        if kind == _OP_BEGAN:
            began.append((which, at_s, None))
        elif kind == _PAGES_MOVED:
            began[-1] = (*began[-1][:2], at_s)
    if between is None:
        yield from ((at_s, at_s if moved_s is None else moved_s) for _, at_s, moved_s in began)
        return
    since, until = between
    moves = iter(journal.moments())
    begun = {position: (mark, mark) for position, mark in enumerate(journal.begun()) if mark is not None}
    group: list[int] = []  # positions of operations since the last moment that is known
    known: tuple[Any, Any] | None = None  # of the first of these
    for position, _, moved_s in began:
        moment = begun.get(position) if moved_s is None else next(moves)
        if moment is not None:
            yield from _shared(ops, group, since, moment[0], known)
            group, since, known = [], moment[1], moment
        group.append(position)
    yield from _shared(ops, group, since, until, known)


def _shared(
    ops: Sequence[TracedOp], positions: Sequence[int], since: Any, until: Any, known: tuple[Any, Any] | None
) -> Iterator[tuple[Any, Any]]:
    """The same of operations behind each other. ``known``: of the first of them."""
    total_s = sum(ops[position].seconds for position in positions) or 1.0
    so_far_s = 0.0
    for position in positions:
        now = _Share(since, until, so_far_s / total_s)
        yield (now, now) if known is None else known
        known = None
        so_far_s += ops[position].seconds


def _told(
    ops: Sequence[TracedOp], journal: Journal, host: int, disk: int, between: tuple[Any, Any] | None
) -> Iterator[tuple[Any, ...]]:
    """The events of a journal, as Python would have noted them."""
    times = _times(ops, journal, between)
    began: tuple[int, int] | None = None
    used: list[PageId] = []
    wrote: list[PageId] = []
    marks = None if between is None else iter(journal.marks())
    spent: list[tuple[str, Any, int, PageId]] = []  # each until when, one behind the other
    for kind, which, nbytes, at_s in journal.events():
        if kind == _OP_USED:
            used.append(which)
            continue
        if kind == _SPENT_SO_FAR:
            spent.append(("stall" if which < 0 else "recompute", at_s if marks is None else next(marks), nbytes, which))
            continue
        if began is not None:  # its pages are known now
            op = ops[began[0]]
            now, ready = next(times)
            yield _BEGINS, op.name, tuple(used), op.new_bytes, op.is_repeatable, now
            if kind == _PAGES_MOVED:
                host, disk = which, nbytes
                since = now
                for name, until, nbytes_made, page in (*spent, ("stall", ready, 0, -1)):
                    yield _SPENT, name, since, until, nbytes_made, page
                    since = until
                spent = []
                yield _PAUSED, now, ready
            yield _READY, op.name, ready, began[1], host, disk
            began = None
        if kind == _OP_BEGAN:
            began, used = (which, nbytes), []
        elif kind == _OP_CREATED:
            yield _CREATED, which, nbytes, ""
        elif kind == _OP_WROTE:
            wrote.append(which)
        elif kind == _OP_ENDED:
            yield _ENDS, tuple(wrote)
            wrote = []
        elif kind == _PAGE_DIED:
            yield _DIED, which
    if began is not None:  # it runs
        op = ops[began[0]]
        now, _ = next(times)
        yield _BEGINS, op.name, tuple(used), op.new_bytes, op.is_repeatable, now
