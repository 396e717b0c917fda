"""The engine of one device."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import NamedTuple, Protocol, cast

from torch_lms.engine.backend import Backend, Mark, Spent
from torch_lms.engine.followed import Followed
from torch_lms.engine.plan_cache import EndedStep, Plans
from torch_lms.engine.planning import Speeds
from torch_lms.engine.promises import Promises
from torch_lms.engine.step_record import StepRecord, Stretch
from torch_lms.pager import Action, Pager
from torch_lms.policy import ByOutlook, Outlook, Passed, PlanCursor, Policy
from torch_lms.residency import PageId, Tier
from torch_lms.timeline import Lane, Link, Timeline
from torch_lms.trace import Living, Trace, TracedOp

REFRESH_EVERY_S = 0.05
"""How often it is asked what is free while there is no room: the kernel takes a millisecond to say it."""

_SHARE_AFTER_FAILURE = 0.95
"""Of what was held when memory ran out."""

_SHARE_OF_AUTO = 0.95
"""Plans leave some of a limit that is asked for again and again, or its next change would be their end."""

_MAX_TRANSFERS = 4096
"""Transfers that have ended and were not counted: then they are, though the step goes on."""

_MAX_OPS = 1_000_000
"""A program whose steps nobody sees end must not fill the memory with its past."""

_STEPS_REMEMBERED = 16
"""Between two training steps there may be validation, which needs less."""

_MAX_FRUITLESS = 64
"""Steps in which all fits, but little room is left, are recorded for a plan: so many, as long as none follows one."""

_TRIED_AGAIN_AFTER = 1024
"""So many such steps later it is tried again."""

_RESERVE = 1 / 8
"""Of the limit, left where operations pass of which nobody asks in advance what they create."""

_MIN_SHARE_FOR_ONE_OP = 1 / 4
"""Of the limit, that an operation may touch whatever else cannot leave."""

_SHORTEST_STALL_S = 50e-6
"""Shorter ones are what the bookkeeping takes."""

_BYTES_PER_S = 1e9
"""Of a link on which nothing has moved yet."""


def drive(actions: Iterable[Action], perform: Callable[[Action], Exception | None]) -> None:
    """Perform ``actions`` one by one, each with the outcome of the one before known to the pager.

    Args:
        actions: the pager's answer to an event.
        perform: does an action; returns why it could not be done where the pager knows how to go on.
    """
    if isinstance(actions, tuple):
        for action in actions:
            error = perform(action)
            if error is not None:
                raise error
        return
    asked = cast(Generator[Action, Exception | None, None], actions)
    try:
        action = next(asked)
        while True:
            try:
                outcome = perform(action)
            except BaseException as error:
                action = asked.throw(error)
            else:
                action = asked.send(outcome)
    except StopIteration:
        pass
    finally:
        outcome = None  # an error, which holds this frame (N21)


class _NotDone(Exception):
    """Nothing of an action was done."""


def _give_up(actions: Iterable[Action]) -> None:
    """Do none of ``actions``: the pager undoes what it has begun."""

    def refuse(action: Action) -> None:
        raise _NotDone

    with suppress(_NotDone):
        drive(actions, refuse)


class Operation(Protocol):
    """An operation of the program.

    Attributes:
        name: as in "aten::mm".
        is_repeatable: whether it gives the same bits if it is run again with the same arguments. Asked when needed.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_repeatable(self) -> bool: ...


class Halt(NamedTuple):
    """Where operations that follow a plan stop, so that pages are moved.

    Attributes:
        stretch: those since the last halt.
        tick: when the last of them ended, counted in operations.
        op: the operation that comes next.
        pages: that it uses.
        new_bytes: that were created since the last halt by operations for which pages moved, and that it creates.
        resident, host, disk: bytes of pages in each tier, once the pages have moved.
    """

    stretch: Stretch
    tick: int
    op: TracedOp
    pages: tuple[PageId, ...]
    new_bytes: int
    resident: int
    host: int
    disk: int


class Engine:
    """Has the pages of one device there when they are needed.

    It is told what happens to pages, one method each; it records the step, follows a plan if there is one, asks the
    pager what to do, and has the backend do it before it returns. The real runtime, the simulator and the tests of the
    pager differ in their backend alone, so what they decide cannot differ.

    Whoever tells it knows pages as numbers. Not thread-safe: one call at a time.

    Args:
        backend: the device.
        policy: chooses victims. A ``Planned`` one follows the plans of ``plans``.
        limit: bytes of the device that pages may occupy; None to ask ``ask_free`` how many it can hold.
        plans: knows plans for the steps to come; None if there are never any.
        recompute: whether plans may have pages recomputed.
        ask_free: tells how many bytes more the device can hold beside a workspace.
        before_moving: called before any page may be evicted or fetched.
        is_aside: tells whether what is told of now is no part of the step.

    Attributes:
        pager: decides.
        links: sums over all transfers, by direction.
        promises: what operations that run are about to create.
        record: of the step that runs; None if it is not recorded.
        recoveries: operations that ran out of memory and were run again.
    """

    def __init__(
        self,
        backend: Backend,
        policy: Policy,
        limit: int | None,
        *,
        plans: Plans | None = None,
        recompute: bool = False,
        ask_free: Callable[[int], int] | None = None,
        before_moving: Callable[[], None] = lambda: None,
        is_aside: Callable[[], bool] = lambda: False,
    ) -> None:
        self.pager = Pager(0 if limit is None else limit, policy, backend.tiers)
        self.links = {Lane.D2H: Link(), Lane.H2D: Link()}
        self.promises = Promises()
        self.recoveries = 0
        self._backend = backend
        self._outcome = partial(backend.perform, spent=self._spent)
        self._policy = policy
        self._plans = plans
        self._recompute = recompute
        self._ask_free = ask_free
        self._before_moving = before_moving
        self._is_aside = is_aside
        self._is_auto = limit is None
        self._ceiling: int | None = None
        self._workspace_bytes = 0
        self._ran_out_at = 0
        self._refreshed_at = 0.0
        self._demands: deque[int] = deque(maxlen=_STEPS_REMEMBERED)
        self._largest_bytes = 0  # of a page that was created
        self._has_seen_step = False  # from its first operation to its last
        self._fruitless = 0  # steps that were recorded, and followed no plan for long, since one did
        self._followed = Followed(policy, plans)
        # The session may begin in the midst of a step: nothing is learned from the first record.
        self.record: StepRecord | None = StepRecord([])
        self._is_record_whole = False
        self._last_record: StepRecord | None = None
        self._evicted_before_step = 0
        self._fetched_before_step = 0
        self._spent_until: Mark = None
        if self._is_auto:
            self.refresh_limit()

    # -- pages -------------------------------------------------------------------------------------------------------

    def created(self, page: PageId, nbytes: int, unpageable: str = "", *, is_found: bool = False) -> None:
        """``page`` exists from now on, resident. ``unpageable`` says why it must stay, "" if it may leave. It
        ``is_found`` if its memory was there before: the operation that is about to use it makes room for it.
        """
        self._largest_bytes = max(self._largest_bytes, nbytes)
        if self._is_aside():
            self._found(page, nbytes, unpageable)
        else:
            if self.record is not None:
                self.record.created(page, nbytes, unpageable)
            self._followed.created(page, nbytes)
        self.pager.created(page, nbytes, unpageable, is_found=is_found)
        if self.promises:
            self.promises.keep(nbytes)
        self._backend.use((page,))

    def _found(self, page: PageId, nbytes: int, unpageable: str) -> None:
        if self.record is not None:
            self.record.found(page, nbytes, unpageable)
        self._followed.found(page, nbytes)

    def found_in_file(self, page: PageId) -> None:
        """``page``, which has just been created, was loaded from a file, and is in it as it is."""
        self.pager.found_in_file(page)

    def forget_files(self) -> None:
        """Pages may be written unseen from now on: none is taken to be as in its file any more."""
        self._tell(self.pager.files_forgotten())

    def died(self, page: PageId) -> None:
        """The storage of ``page`` is gone."""
        if self.record is not None:
            self.record.died(page)
        self._followed.died(page)
        actions = self.pager.died(page)
        if actions:
            self._perform(actions)

    def resized(self, page: PageId, nbytes: int) -> None:
        """The program gave the storage of ``page`` another size, and with it other memory."""
        self._backend.use((page,))
        self._tell(self.pager.resized(page, nbytes))

    def exported(self, pages: tuple[PageId, ...], reason: str) -> None:
        """The address of ``pages`` escaped: they come back, and stay for good, for ``reason``."""
        self._tell(self.pager.exported(pages, reason))
        self._backend.use(pages)

    def invalidated(self, pages: tuple[PageId, ...]) -> None:
        """``pages`` are about to lose their content, unused."""
        self._tell(self.pager.invalidated(pages))

    # -- operations --------------------------------------------------------------------------------------------------

    @property
    def needs_writes(self) -> bool:
        """Whether ``op_begins`` must list what the operation may write."""
        return bool(self.pager.recipes)

    def room_for_one_op(self, pages: tuple[PageId, ...]) -> int:
        """Bytes that an operation on ``pages`` may touch: what else there is may leave, unless it is held. Where little
        is left beside that, the limit is exceeded rather than all operations made tiny.
        """
        limit, held = self.pager.limit, self.pager.book.ledger.held
        if not held:
            return limit
        known = filter(None, map(self.pager.book.get, pages))
        own = sum(page.nbytes for page in known if page.is_held)
        return max(limit - held + own, int(_MIN_SHARE_FOR_ONE_OP * limit))

    def op_begins(
        self, op: Operation, pages: tuple[PageId, ...], new_bytes: int, writes: tuple[PageId, ...] = ()
    ) -> None:
        """``op`` of the program begins: ``pages`` become resident, with room for ``new_bytes`` beside them and for the
        results of operations on other threads.
        """
        if self._is_aside():
            self.access_begins(pages, writes, new_bytes, op.name)
            return
        if self.record is not None:
            now = self._backend.mark()
            self._join_plans()
            self._followed.op_begins(op.name, pages)
            self.record.begins(op.name, pages, new_bytes, self._recompute and self._is_repeatable(op), now)
            self._stop_if_too_long(self.record)
        self._make_ready(op.name, pages, new_bytes, writes)

    def access_begins(
        self, pages: tuple[PageId, ...], writes: tuple[PageId, ...] = (), new_bytes: int = 0, name: str = "view"
    ) -> None:
        """``pages`` are used by what need not be part of every such step. Ends as an operation does."""
        if self.record is not None:
            self.record.access_begins(self._backend.mark())
            self._stop_if_too_long(self.record)
        self._make_ready(name, pages, new_bytes, writes)

    def op_ends(self, pages: tuple[PageId, ...], written: tuple[PageId, ...]) -> None:
        """The operation on ``pages`` ended, or failed; it wrote ``written``."""
        if self.record is not None:
            self.record.ends(written)
        self.promises.end()
        actions = self.pager.op_ends(pages, written)
        if actions:
            self._perform(actions)

    @property
    def cursor_to_follow(self) -> PlanCursor | None:
        """Where the step is in its plan, if operations may pass from here on for which the plan has nothing to do. They
        may not if it is not known what they create.
        """
        cursor = self._followed.cursor
        if self.record is None or self._ran_out_at or cursor is None:
            return None
        return None if cursor.position < 0 or cursor.creates_more else cursor

    def passed(self, passed: Passed, stretch: Stretch) -> None:
        """Operations followed the plan that ``cursor_to_follow`` gave, and nothing had to be decided for them.

        Args:
            passed: what they did.
            stretch: those among them since pages were last moved.
        """
        cursor = self._followed.cursor
        assert cursor is not None
        self._have_passed(passed, cursor.plan.trace.ops, stretch)
        cursor.passed(passed)
        self._tell(self.pager.passed(passed))

    @property
    def outlook(self) -> Outlook | None:
        """What the operations to come may go by, if the step follows no plan."""
        if self._ran_out_at or self._followed.cursor is not None:
            return None
        return self.pager.outlook()

    @property
    def watches_for_plan(self) -> bool:
        """Whether the step follows none, but may be like one again, so that not too many operations should pass."""
        return self._followed.may_rejoin

    def went_on(self, passed: Passed, by_outlook: ByOutlook, stretch: Stretch) -> None:
        """Operations went by the ``outlook``, and nothing had to be decided for them. Arguments as of ``passed``."""
        ops = [
            TracedOp(name, (), (), (), new_bytes, 0.0, self._recompute and is_repeatable)
            for name, new_bytes, is_repeatable in by_outlook.ops
        ]
        self._have_passed(passed, ops, stretch)
        if self.record is not None:
            self.record.ops_by_outlook += len(ops)
            if self._followed.may_rejoin:
                self.record.tell_of_stretch(self._followed)
        self._tell(self.pager.went_on(passed, by_outlook.first_uses))
        self._backend.grows(by_outlook.made_bytes, self.pager.book.ledger.device, self.pager.limit)

    def _have_passed(self, passed: Passed, ops: Sequence[TracedOp], stretch: Stretch) -> None:
        ledger = self.pager.book.ledger
        self._largest_bytes = max([self._largest_bytes, *(birth.nbytes for birth in passed.births)])
        if self.record is not None:
            self.record.passed(ops, stretch, self._backend.mark(), ledger.host, ledger.disk)
            self._stop_if_too_long(self.record)

    def moves(self, halt: Halt, move: Callable[[Spent], bool]) -> bool:
        """Operations followed the plan, and pages are moved before the next, as the plan has it.

        Args:
            halt: where they stopped.
            move: moves the pages, and says what it spent time on; returns whether all of them moved as planned. Else
                the operation has yet to begin.
        """
        op, record, view = halt.op, self.record, self.pager.view
        view.tick = halt.tick
        now = self._backend.mark()
        cursor = self._followed.cursor
        if record is not None and cursor is not None:
            record.passed(cursor.plan.trace.ops, halt.stretch, now, halt.host, halt.disk)
        view.tick += 1
        self._spent_until = now
        are_there = False
        try:
            are_there = move(self._spent)
        finally:
            if record is not None and are_there:
                record.begins(op.name, halt.pages, op.new_bytes, op.is_repeatable, now)
            elif record is not None:
                record.access_begins(now)
            self._has_moved(now)
        if not are_there:
            return False
        self._backend.grows(halt.new_bytes, halt.resident, self.pager.limit)
        if record is not None:
            record.ready(op.name, self._spent_until, halt.resident, halt.host, halt.disk)
        return True

    @property
    def moved_at(self) -> Mark:
        """When pages had last been moved."""
        return self._spent_until

    @property
    def is_to_ask_for_room(self) -> bool:
        """With limit "auto": whether it was asked for so long ago that it had better be asked again."""
        return time.monotonic() >= self.asks_for_room_at_s

    @property
    def asks_for_room_at_s(self) -> float:
        """From when on; that clock is ``time.monotonic``."""
        return self._refreshed_at + REFRESH_EVERY_S if self._is_auto else inf

    @property
    def position_to_repeat(self) -> int:
        """The position in its plan of the operation that runs, if a page is recomputed by it later; else -1."""
        cursor = self._followed.cursor
        if cursor is None or cursor.position not in cursor.plan.repeated_ops or self._is_aside():
            return -1
        return cursor.position

    def pinned(self, pages: tuple[PageId, ...]) -> None:
        """``pages`` become resident, and stay until ``unpinned``."""
        actions = self.pager.pinned(pages)
        if actions:
            began = self._drive(actions)
            try:
                self._has_moved(began)
            except BaseException:  # an interrupt: the caller takes it that nothing was pinned
                self._tell(self.pager.unpinned(pages))
                raise

    def unpinned(self, pages: tuple[PageId, ...], written: tuple[PageId, ...] = ()) -> None:
        """Undoes one ``pinned``; meanwhile ``written`` may have changed."""
        self._tell(self.pager.unpinned(pages, written))

    def transfers_done(self, pages: Sequence[PageId]) -> None:
        """The transfers of ``pages`` that were in flight have ended. The engine asks the backend at each operation."""
        self._perform(self.pager.transfers_done(pages))

    def _make_ready(self, name: str, pages: tuple[PageId, ...], new_bytes: int, writes: tuple[PageId, ...]) -> None:
        pager, backend = self.pager, self._backend
        if self._ran_out_at:
            held_bytes, self._ran_out_at = self._ran_out_at, 0
            self._promise_less(held_bytes)
        if pager.has_transfers:
            landed = backend.landed()
            if landed:
                self.transfers_done(landed)
        needed_bytes = new_bytes + self.promises.of_others() if self.promises else new_bytes
        if self._is_auto and pager.room < needed_bytes:
            self.refresh_limit(at_most_every_s=REFRESH_EVERY_S)
        actions = pager.op_begins(pages, needed_bytes, writes)
        began = self._drive(actions) if actions else None
        try:
            if actions:
                self._has_moved(began)
            ledger = pager.book.ledger
            ledger.note_peak_device()
            backend.grows(new_bytes, ledger.device, pager.limit)
            if self.record is not None:
                self.record.ready(name, backend.mark(), ledger.device, ledger.host, ledger.disk)
            backend.use(pages)
            self.promises.give(new_bytes)
        except BaseException:  # an interrupt: the caller takes it that the operation never began
            self._tell(pager.op_ends(pages, ()))
            raise

    def _join_plans(self) -> None:
        """Follow what has been made since the step began without a plan."""
        if self._followed.cursor is not None or self._plans is None or not self._plans.has_news:
            return
        if self.record is not None and self._is_record_whole:
            self._followed.join(self._plans.begin_step(self.record.living, self.pager.limit))

    def _is_repeatable(self, op: Operation) -> bool:
        """Whether ``op`` can be repeated. So it was in a step that went like this one so far: that is quicker told."""
        cursor = self._followed.cursor
        return op.is_repeatable if cursor is None else cursor.plan.trace.ops[cursor.position].is_repeatable

    # -- steps -------------------------------------------------------------------------------------------------------

    def step_ended(self) -> None:
        """A training step, or an inference call, ended."""
        self._tell(self.pager.step_ended())
        self._demands.append(self.pager.step_demand_bytes)
        self.count_transfers()

    def step_begins(self, is_short: bool) -> None:
        """Another begins. Unless room may be short in it, it is neither recorded nor planned."""
        self._end_record()
        self._stop_recording()
        if not is_short and self._fruitless >= _MAX_FRUITLESS:
            self._fruitless = (self._fruitless + 1) % _TRIED_AGAIN_AFTER
        if is_short:
            book = self.pager.book
            living = [Living(page.id, page.nbytes, page.unpageable) for page in book]
            self.record = StepRecord(living, self._last_record)
            self._is_record_whole = True
            if self._plans is not None:
                self._followed.begin(self.record, self._plans.begin_step(living, self.pager.limit))

    def _end_record(self) -> None:
        record = self.record
        evicted_bytes = self.pager.counters.evicted_bytes
        fetched_bytes = self.pager.counters.fetched_bytes
        if record is not None and record.op_count:
            record.finish(self._backend.mark(), self.pager.policy.name)
            self._last_record = record
            self._has_seen_step = self._has_seen_step or self._is_record_whole
            if self._plans is not None and self._is_record_whole:
                ended = EndedStep(
                    record,
                    self._followed.ended(),
                    self._limit_of_plans,
                    evicted_bytes - self._evicted_before_step,
                    fetched_bytes - self._fetched_before_step,
                    self.pager.step_demand_bytes,
                    self._link_speeds(),
                )
                is_followed = 2 * ended.followed_ops >= record.op_count
                self._fruitless = 0 if is_followed else self._fruitless + 1
                self._plans.end_step(ended)
        self._evicted_before_step = evicted_bytes
        self._fetched_before_step = fetched_bytes

    def _stop_if_too_long(self, record: StepRecord) -> None:
        if record.op_count + record.accesses > _MAX_OPS:
            self._stop_recording()

    def _stop_recording(self) -> None:
        self.record = None
        self._followed.stop()

    def _link_speeds(self) -> Speeds:
        out, back = (self.links[lane].bytes_per_s or _BYTES_PER_S for lane in (Lane.D2H, Lane.H2D))
        backend = self._backend
        write, read = (speed or inf for speed in backend.disk_bytes_per_s)
        host_bytes = backend.tiers.get(Tier.HOST, inf)
        return Speeds(
            out,
            back,
            backend.overlap_penalty,
            host_bytes,
            write,
            read,
            backend.repeat_s,
            backend.launch_s,
            backend.action_s,
        )

    @property
    def trace(self) -> Trace | None:
        """The last step that was recorded; None before. Waits until it is over on the device, too."""
        return None if self._last_record is None else self._last_record.trace(self._backend.seconds)

    @property
    def timeline(self) -> Timeline | None:
        """The same step in time."""
        if self._last_record is None:
            return None
        timeline = self._last_record.timeline(self._backend.seconds, _SHORTEST_STALL_S)
        return timeline if self._plans is None else timeline.beside(self._plans.spans)

    # -- the limit ---------------------------------------------------------------------------------------------------

    @property
    def is_roomy(self) -> bool:
        """Whether there is room for as much again as is there."""
        return self.pager.book.ledger.device * 2 < self.pager.limit

    def can_take_fast_path(self, fills_limit: bool) -> bool:
        """Whether nothing is away, and nothing need be evicted in a step like one of the last.

        Args:
            fills_limit: the fast path stays open until pages fill the limit. Else it closes in the midst of a step that
                needs more than ``fast_path_bytes``, and operations take longer from then on. To follow a plan in which
                nothing moves is better then, if there may be one.
        """
        ledger, demand_bytes = self.pager.book.ledger, max(self._demands, default=0)
        is_away = ledger.host or ledger.disk or ledger.device < ledger.live
        if fills_limit:
            return not is_away and max(ledger.device, demand_bytes) <= self._limit_of_plans
        may_be_planned = self._plans is not None and self._fruitless < _MAX_FRUITLESS
        most = self.fast_path_bytes if may_be_planned else self.pager.limit
        return ledger.device < self.fast_path_bytes and not is_away and demand_bytes <= most

    @property
    def fast_path_bytes(self) -> int:
        """While there are fewer bytes of pages than this, nobody asks on the fast path what an operation creates: there
        is room for an eighth of the limit, and for the largest page that was created so far. Until a step was recorded
        that is not known, and there is room for half of the limit.
        """
        limit = self.pager.limit
        reserve = max(int(limit * _RESERVE), self._largest_bytes)
        return max(limit // 2, limit - reserve) if self._has_seen_step else limit // 2

    @property
    def _limit_of_plans(self) -> int:
        return int(self.pager.limit * (_SHARE_OF_AUTO if self._is_auto else 1))

    def refresh_limit(self, at_most_every_s: float = 0.0, before_moves: Callable[[], None] | None = None) -> None:
        """With limit "auto": what is on the device now and what it can still hold, as far as is known (N7).

        Args:
            at_most_every_s: it stays as it is if it was refreshed since.
            before_moves: called before pages have to leave for it, so that each of them is known.
        """
        if not self._is_auto or self._ask_free is None:
            return
        now = time.monotonic()
        if now - self._refreshed_at >= at_most_every_s:
            self._refreshed_at = now
            limit = self.pager.book.ledger.device + self._ask_free(self._workspace_bytes)
            limit = limit if self._ceiling is None else min(limit, self._ceiling)
            if limit < self.pager.book.ledger.device and before_moves is not None:
                before_moves()
            self.set_soft_limit(limit)

    def set_limit(self, nbytes: int) -> None:
        """From now on pages may occupy ``nbytes``, whatever was known or learned before."""
        self._is_auto = False
        self._ceiling = None
        self.set_soft_limit(nbytes)

    def set_soft_limit(self, nbytes: int) -> None:
        """From now on pages may occupy ``nbytes``, until more is known."""
        self._tell(self.pager.limit_changed(nbytes))

    def leave_free(self, nbytes: int) -> None:
        """An operation took ``nbytes`` beside pages. Without them it takes another algorithm, or fails (N28)."""
        if nbytes <= self._workspace_bytes or self._ask_free is None:
            return
        self._workspace_bytes = nbytes
        most = self.pager.book.ledger.device + self._ask_free(nbytes)
        if most < self.pager.limit:
            self.set_soft_limit(most)

    def learn_from_failure(self, new_bytes: int) -> None:
        """Memory ran out within the limit: what is not a page needs more than the margin. Promise less from now on."""
        self.recoveries += 1
        self._promise_less(self.pager.book.ledger.device + new_bytes)

    def page_found_no_memory(self) -> None:
        """The backend could not bring a page back. From the next operation on less is promised: to find out again, at
        each such page, would cost all that is cached, and all other pages.
        """
        self._ran_out_at = self.pager.book.ledger.device

    def _promise_less(self, held_bytes: int) -> None:
        self._ceiling = int(_SHARE_AFTER_FAILURE * min(self.pager.limit, held_bytes))
        self.set_soft_limit(self._ceiling)

    # -- at the user's wish ------------------------------------------------------------------------------------------

    def reclaim(self) -> None:
        """Evict everything that may be."""
        self._tell(self.pager.reclaim())

    def restore(self, pages: tuple[PageId, ...]) -> None:
        """Bring ``pages`` back, whatever the limit."""
        self._tell(self.pager.restore(pages))

    # -- what was done -----------------------------------------------------------------------------------------------

    def count_transfers(self) -> None:
        """Count the transfers that have ended."""
        transfers = self._backend.take_transfers()
        for lane, link in self.links.items():
            link.add(transfers.times(lane))
        if self.record is not None:
            self.record.add_transfers(transfers)

    @property
    def busy_s(self) -> float:
        """Seconds in which transfers were under way, either direction by itself."""
        return sum(link.busy_s for link in self.links.values())

    def reset_counts(self) -> None:
        """Start counting anew."""
        self.count_transfers()
        self.pager.reset_counters()
        self.pager.book.reset_peak_device()
        self.links = {Lane.D2H: Link(), Lane.H2D: Link()}
        self.recoveries = 0
        self._evicted_before_step = 0
        self._fetched_before_step = 0

    # -- having it done ----------------------------------------------------------------------------------------------

    def _tell(self, actions: Iterable[Action]) -> None:
        if actions:
            self._perform(actions)

    def _perform(self, actions: Iterable[Action]) -> None:
        began = self._drive(actions)
        self._has_moved(began)

    def _drive(self, actions: Iterable[Action]) -> Mark:
        """Have done what the pager asks for. Raises what keeps that from being done; the pager has undone it then.

        Returns:
            When it began; None if the step is not recorded.
        """
        try:
            if not isinstance(actions, tuple):
                self._before_moving()
            began = self._backend.mark() if self.record is not None else None
        except BaseException:  # an interrupt, before the pager was asked for its first action
            _give_up(actions)
            raise
        self._spent_until = began
        try:
            with self._backend.unobserved():
                drive(actions, self._outcome)
        except BaseException:
            self._has_moved(began)
            raise
        return began

    def _has_moved(self, began: Mark) -> None:
        """Note how long the program has paused, and count transfers before there are too many."""
        if self.record is not None and began is not None:
            self._spent("stall")
            self.record.paused(began, self._spent_until)
        if self._backend.transfers_made > _MAX_TRANSFERS:
            self.count_transfers()

    def _spent(self, name: str, nbytes: int = 0, page: PageId = -1) -> None:
        """Note what the program was kept busy with since the last such note."""
        if self.record is not None:
            now = self._backend.mark()
            self.record.spent(name, self._spent_until, now, nbytes, page)
            self._spent_until = now
