"""What the native interposer is told by a session, and asks of it."""

import sys
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from threading import RLock, get_ident
from typing import Any, NamedTuple

import torch

from torch_lms.capture import unobserved
from torch_lms.capture.mode import FILLED_UNSEEN, LARGE, LmsMode
from torch_lms.capture.page_owner import PageOwner
from torch_lms.capture.passage import described
from torch_lms.capture.registry import Entry
from torch_lms.capture.split import RUNS
from torch_lms.engine import Engine, Halt, Spent, Stretch
from torch_lms.native import Native, PageId, ToldRecipe
from torch_lms.pager import Pager
from torch_lms.policy import ByOutlook, Counts, Lists, Moved, Outlook, Passed, Plan, PlanCursor, Recipe
from torch_lms.residency import Tier
from torch_lms.runtime.backend import DeviceBackend
from torch_lms.runtime.fast_path import FastPath, Progress, Running
from torch_lms.runtime.interposer import Interposer
from torch_lms.runtime.malloc import Heap
from torch_lms.runtime.native_cpu import NativeCpuExecutor
from torch_lms.runtime.native_moves import NUMBERS, OTHER_STATE, STATES, Moves
from torch_lms.runtime.native_pages import NativePageTable, index_of
from torch_lms.runtime.native_recompute import NativeRecomputer
from torch_lms.runtime.native_streams import NativeStreamExecutor
from torch_lms.runtime.pageable import READ_UNSEEN, READ_UNSEEN_WIDE, why_unpageable
from torch_lms.trace import TracedOp


class Prepared(IntEnum):
    """What became of an operation for which pages had to move. As ``native/csrc/interposer.h`` has it."""

    NO = 0
    """Nothing: the mode has to run it."""

    FOLLOWED = 1
    """The pages are there, and the plan is followed from this operation on."""

    BEGUN = 2
    """They are there, and pinned until it has ``ended``."""


_PATIENCE_US = 200
"""How long operations pass before it is asked whether copies down have ended, whose room a page waits for."""

_MAX_PLANS = 48
"""That the interposer knows. More than are remembered, so that those in use are seldom told anew."""


_MAX_BY_OUTLOOK = 64
"""Operations that pass by one outlook: so long what it says is good enough."""

_MAX_BEFORE_PLAN = 16
"""The same where the step may come back to a plan that it has left."""

_WORTH_HANDING_OVER = 8
"""Operations. To hand over, and to take over again, costs about as much as to run one in Python."""

_MAX_PAUSE = 64
"""Operations that are Python's until it hands over again."""


class _Pauses:
    """Where nearly every operation needs Python, as all do at first sight, nothing is handed over for a while."""

    def __init__(self) -> None:
        self._length = 0
        self._left = 0

    def is_one_now(self) -> bool:
        """Whether an operation that ends is in a pause."""
        self._left = max(0, self._left - 1)
        return self._left > 0

    def passed(self, ops: int) -> None:
        """So many passed before Python had to take over."""
        self._length = 0 if ops >= _WORTH_HANDING_OVER else min(2 * self._length + 1, _MAX_PAUSE)
        self._left = self._length


class _Ahead(NamedTuple):
    """What operations go by from here on. Fields as of ``Native.follow``."""

    plan: Any
    is_new: bool
    position: int
    bound: list[tuple[PageId, int]]
    lists: tuple[list[PageId], list[PageId], list[PageId], list[PageId]]
    recipes: list[ToldRecipe]
    outlook: tuple[int, int, int, int] = (0, 0, 0, 0)


class NativeFastPath(FastPath):
    """The fast path, on which most operations are the native interposer's: it runs them, and tells of none.

    Attributes:
        most_at_once: bytes that one operation may need under a limit; what needs more is cut in pieces.
    """

    _table: NativePageTable

    def __init__(
        self,
        native: Native,
        table: NativePageTable,
        lock: RLock,
        reap: Callable[[], None],
        notice_size: Callable[[Entry], None],
        end: Callable[[list[Entry], list[Entry]], None],
    ) -> None:
        super().__init__(table, lock, reap, notice_size)
        self.most_at_once: Callable[[int], int] = lambda limit: limit
        self._end = end
        self._native = native
        self._telling: set[DeviceBackend] = set()
        self._followed: DeviceBackend | None = None
        self._cursor: PlanCursor | None = None
        self._is_planned = False  # what is followed is that, and no outlook
        self._pauses = _Pauses()
        self._since: Any = None
        self._tick = 0
        self._tiers: list[Tier] = []
        self._dropped: list[Recipe] = []
        self._plans: dict[int, tuple[Plan, Any]] = {}
        self._parts: set[tuple[str, tuple[int, ...]]] = set()

    @property
    def operations(self) -> int:
        return self.entered + self._native.entered()

    def _has_opened(self) -> None:
        backends = self._table.backends
        for backend in backends:
            if backend.executor.has_streams:
                its = [entry.page for entry in self._table.registry if entry.engine is backend.engine]
                self._tell_streams(backend, its)
        self._native.open(
            [
                (index_of(backend.device), backend.engine.pager.limit, backend.engine.fast_path_bytes)
                for backend in backends
            ]
        )

    def _tell_streams(self, backend: DeviceBackend, moved: list[PageId]) -> None:
        """On which streams ``moved`` may be used now; the executor tells whenever there are more."""
        self._native.forget_streams(moved)
        if backend not in self._telling:
            backend.executor.tell_streams(self._native.use_on)
            self._telling.add(backend)
            return
        for page in moved:
            for stream in backend.executor.streams_of(page):
                self._native.use_on(page, stream)

    def _has_closed(self) -> list[Running]:
        """Pages born there are known by their numbers once the books are up to date."""
        running = self._native.close()
        self._reap()
        return self._running(running)

    def abandon(self) -> None:
        super().abandon()
        self._native.close()
        self._followed = None

    def was_split(self, name: str, entries: list[Entry]) -> None:
        """The interposer sees operations as they are before they are split: such a part it cannot tell from a whole."""
        self._parts.add((name, tuple(entry.nbytes for entry in entries)))

    def hand_over(self) -> None:
        backends = self._table.backends
        if self.is_open or len(backends) != 1:
            return
        (backend,) = backends
        engine = backend.engine
        cursor = engine.cursor_to_follow
        if cursor is not None:
            ahead = self._by_plan(cursor)
        elif self._pauses.is_one_now() or (outlook := engine.outlook) is None:
            return
        else:
            ahead = self._by_outlook(outlook, engine)
        pager, ledger = engine.pager, engine.pager.book.ledger
        tiers = {**pager.tiers, Tier.FILE: 0}  # into which nothing is evicted
        self._tiers = list(tiers)
        states = _changed(pager, self._tiers)
        if backend.executor.has_streams:
            self._tell_streams(backend, [page for page, *_ in states])
            self._since = backend.mark()
        limit = pager.limit - engine.promises.of_others()
        self._tick = pager.view.tick
        self._dropped = list(pager.recipes.values())
        self._native.follow(
            *(ahead.plan, ahead.is_new, ahead.position),
            index_of(backend.device),
            (limit, ledger.device, ledger.peak_live, ledger.peak_device, _PATIENCE_US),
            [(ledger.below(tier), capacity) for tier, capacity in tiers.items()],
            states,
            *(ahead.bound, ahead.lists, ahead.recipes),
            [_told(recipe, -1 - place) for place, recipe in enumerate(self._dropped)],
            ahead.outlook,
            self._carrier(backend, cursor is None or cursor.plan.moves_anything),
        )
        self._cursor = cursor or self._cursor
        self._is_planned = cursor is not None
        self._followed = backend

    def _by_plan(self, cursor: PlanCursor) -> _Ahead:
        """A step is there in its plan."""
        return _Ahead(
            self._plan_of(cursor.plan),
            cursor is not self._cursor,
            cursor.position,
            cursor.take_newly_bound(),
            (list(cursor.due), list(cursor.to_evict), list(cursor.to_fetch), list(cursor.to_drop)),
            [_told(recipe, recipe.number) for recipe in cursor.recipes.values()],
        )

    def _by_outlook(self, outlook: Outlook, engine: Engine) -> _Ahead:
        """The step follows no plan."""
        most_ops = _MAX_BEFORE_PLAN if engine.watches_for_plan else _MAX_BY_OUTLOOK
        most_at_once = self.most_at_once(engine.pager.limit)
        numbers = outlook.reserve, outlook.spared, most_ops, most_at_once
        return _Ahead(None, False, -1, [], (list(outlook.leaving), [], list(outlook.coming), []), [], numbers)

    def _carrier(self, backend: DeviceBackend, moves_anything: bool) -> tuple[Any, Any, Any, int, int, float, int]:
        """Who moves pages without Python, to which tier, and until when. Nobody if nothing moves: as long as that is
        so, what the C library does with freed memory stays as it is.
        """
        recomputer = backend.recomputer
        assert isinstance(recomputer, NativeRecomputer)
        executor, engine = backend.executor, backend.engine
        calls, until = recomputer.calls, (engine.asks_for_room_at_s, self._tick)
        if engine.pager.has_refused or not moves_anything:
            return None, None, calls, -1, 0, *until
        if isinstance(executor, NativeStreamExecutor):
            return None, executor.lanes, calls, self._tiers.index(Tier.HOST), sys.maxsize, *until
        if isinstance(executor, NativeCpuExecutor):
            executor.watch_heap()
            most_unseen = Heap.most_unseen(engine.pager.limit)
            return executor.spill, None, calls, self._tiers.index(Tier.DISK), most_unseen, *until
        return None, None, calls, -1, 0, *until

    def prepare(self, position: int, pages: list[PageId], writes: list[PageId]) -> "Prepared":
        """The plan's operation at ``position``, which the interposer is about to run, begins on ``pages``."""
        with self._lock:
            backend, cursor = self._followed, self._cursor
            if backend is None or cursor is None or not self._is_planned:
                return Prepared.NO  # another thread was quicker, or there is no plan
            op = cursor.plan.trace.ops[position]
            if self._moves(backend, op, position, pages, writes):
                return Prepared.FOLLOWED
            self._reap()
            engine, used = backend.engine, tuple(pages)
            if engine.cursor_to_follow is not cursor or cursor.position + 1 != position:
                return Prepared.NO
            try:
                engine.op_begins(op, used, op.new_bytes, tuple(writes))
            except (RuntimeError, MemoryError) as error:
                if not backend.executor.is_out_of_memory(error):
                    raise
                return Prepared.NO  # it will be told in full
            if engine.cursor_to_follow is not cursor:
                return Prepared.BEGUN
            engine.pager.book.unpin(used, engine.pager.view.tick)  # whoever takes over pins them anew
            engine.promises.end()
            self.hand_over()
            return Prepared.FOLLOWED

    def _moves(
        self, backend: DeviceBackend, op: TracedOp, position: int, pages: list[PageId], writes: list[PageId]
    ) -> bool:
        """Have pages moved before ``op`` as the plan has it. Whether that was all: else the engine has to decide."""
        engine, executor = backend.engine, backend.executor
        if engine.pager.has_refused or (engine.is_to_ask_for_room and self._is_short(engine, op)):
            return False
        found = self._native.move(position, pages, writes, executor.landed())
        if found is None:
            return False
        journal, journaled, ops, made_bytes, resident, held, told, recipes, unknown = found
        moves = Moves(backend, self._tiers, self._tick, self._writes_of)
        dropped = {recipe.page: recipe for recipe in self._recipes(recipes)}

        def move(spent: Spent) -> bool:
            for page, storage, stream in unknown:
                self._table.know(page, storage, stream)
                if why_unpageable(storage, is_owned=False):
                    return False
            if not executor.has_streams:
                return moves.perform(told, dropped, self._table.registry.__getitem__, spent)
            with backend.unobserved():
                if not moves.perform(told, dropped, self._table.registry.__getitem__, spent):
                    return False
                moved = {page for _, page, *_ in told}
                executor.use([self._table.registry[page] for page in moved.intersection(pages)])
            self._tell_streams(backend, list(moved))
            return True

        host, disk, _ = self._lower(held)
        stretch = Stretch(journaled, journal, self._since)
        new_bytes = made_bytes + op.new_bytes
        halt = Halt(stretch, self._tick + ops - 1, op, tuple(pages), new_bytes, resident, host, disk)
        are_there = False
        try:
            are_there = engine.moves(halt, move)
        finally:
            self._native.moved(are_there, moves.done, moves.failed, moves.state)
        if executor.has_streams:
            self._since = engine.moved_at
        return are_there

    def _is_short(self, engine: Engine, op: TracedOp) -> bool:
        """Whether there is too little room for what ``op`` creates, as far as the limit is known."""
        now = self.progress()
        return now is None or engine.pager.limit - now.resident < op.new_bytes

    def _writes_of(self, page: PageId) -> int:
        """How often the page was written so far; -1 if it is none any more."""
        since = self._native.writes(page)
        return since if since < 0 or self._followed is None else since + max(0, self._followed.writes_of(page))

    def ended(self, pages: list[PageId], written: list[PageId]) -> None:
        """It ended, of which no plan was followed."""
        found = [entry for page in pages if (entry := self._table.registry.get(page)) is not None]
        self._end(found, [entry for entry in found if entry.page in written])

    def take_over(self) -> bool:
        backend, self._followed = self._followed, None
        if backend is None:
            return False
        journal, journaled, ops, position, created, births, bound, uses, dead, *rest = self._native.take_over()
        peak_live, peak_device, moved, counts, lists, planned, recipes, stale, running, by_outlook = rest
        book = backend.engine.pager.book
        dropped = {recipe.page: recipe for recipe in self._recipes(recipes)}
        due, to_evict, to_fetch, to_drop = lists
        passed = Passed(
            self._tick,
            *(ops, position, created, self._table.born_as_planned(births), bound, uses),
            [page for page in dead if page in book],
            *(peak_live, peak_device),
            [
                Moved(page, STATES[state], self._tier_of(tier), is_new, dropped.get(page))
                for page, state, tier, is_new in moved
            ],
            Counts(*counts),
            Lists(due, to_evict, to_fetch, to_drop, self._recipes(planned)),
        )
        with backend.unobserved():
            for page in stale:
                backend.executor.discard(self._table.registry[page])
        if not self._is_planned:
            self._pauses.passed(ops)
        backend.passed(
            passed, None if self._is_planned else ByOutlook(*by_outlook), Stretch(journaled, journal, self._since)
        )
        for page in dead:
            entry = self._table.registry.forget(page)
            if entry is not None and page not in passed.deaths:
                backend.forget(entry)  # its engine has not heard of it
        self._pin(self._running(running))
        return True

    def progress(self) -> Progress | None:
        found = self._native.progress() if self._followed is not None else None
        if found is None:
            return None
        resident, held, counts = found
        return Progress(resident, *self._lower(held), Counts(*counts))

    def _lower(self, held: list[int]) -> tuple[int, int, int]:
        """Bytes in host memory, on disk, and in files that were loaded."""
        by_tier = dict(zip(self._tiers, held, strict=False))
        return by_tier.get(Tier.HOST, 0), by_tier.get(Tier.DISK, 0), by_tier[Tier.FILE]

    def _recipes(self, told: list[tuple[PageId, int, list[PageId], int]]) -> list[Recipe]:
        """Recipes of the plan that is followed, and of pages that were dropped before it was, maybe by another."""
        if self._cursor is None:
            return []
        known = self._cursor.plan.recomputations
        return [
            Recipe(page, tuple(inputs), extra_bytes, known[number].ops, number)
            if number >= 0
            else self._dropped[-1 - number]
            for page, number, inputs, extra_bytes in told
        ]

    def _tier_of(self, number: int) -> Tier | None:
        return None if number < 0 else self._tiers[number]

    def _plan_of(self, plan: Plan) -> Any:
        """``plan`` as the interposer has it."""
        known, followed = self._plans.get(id(plan), (None, None))
        if known is not plan:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            followed = _compiled(self._native, plan, self._parts)
            self._plans[id(plan)] = plan, followed
        return followed

    def _running(self, told: list[tuple[int, list[PageId], int]]) -> list[Running]:
        get = self._table.registry.get
        return [
            Running(thread, [entry for page in pages if (entry := get(page)) is not None], new_bytes)
            for thread, pages, new_bytes in told
        ]

    def room_is_short(self) -> None:
        """So much was born that from now on pages may move."""
        with self._lock:
            self.close()

    def resized(self, pages: list[PageId]) -> None:
        """The program gave the storages of ``pages`` another size, by an operation of the interposer's."""
        with self._lock:
            self._reap()  # else those that were born here have no entry
            for page in pages:
                entry = self._table.registry.get(page)
                if entry is not None:
                    self._notice_size(entry)

    def ended_pinned(self, wrote: bool) -> None:
        """An operation of the interposer's ended on the calling thread, which was pinned meanwhile."""
        with self._lock:
            self.take_over()
            self._unpin(get_ident(), wrote)


def _told(recipe: Recipe, number: int) -> ToldRecipe:
    return recipe.page, number, recipe.inputs, recipe.extra_bytes


def _changed(pager: Pager, tiers: list[Tier]) -> list[tuple[PageId, int, int, bool, bool, int]]:
    """Pages of which something changed since this was last asked: their states and tiers; whether their lower copies
    are new, and whether they must stay; how often they were written.
    """
    states = []
    for page_id in pager.book.moved:
        page = pager.book.get(page_id)
        if page is None:
            continue
        tier = -1 if page.tier is None else tiers.index(page.tier)
        is_fixed = bool(page.pins or page.unpageable)
        state = NUMBERS.get(page.state, OTHER_STATE)
        states.append((page_id, state, tier, page.has_new_copy, is_fixed, page.writes))
    pager.book.moved.clear()
    return states


def _compiled(native: Native, plan: Plan, parts: Container[tuple[str, tuple[int, ...]]]) -> Any:
    """``plan`` as the interposer has it. ``parts``: operations that are parts of larger ones, which Python splits."""
    trace = plan.trace

    recorded = trace.recorded_nbytes or [page.nbytes for page in trace.pages]

    def is_whole(op: TracedOp) -> bool:
        return (op.name, tuple(recorded[page] for page in op.pages)) not in parts

    dies: list[list[int]] = [[] for _ in trace.ops]
    for number, page in enumerate(trace.pages):
        if 0 <= page.dead < len(dies):
            dies[page.dead].append(number)
    ops = [
        (
            *(op.name, op.pages, op.creates, dies[position], max(op.new_bytes, trace.created_bytes(op))),
            (
                *(plan.evicts[position], plan.fetches[position]),
                [plan.numbers[recomputation] for recomputation in plan.dropped_after.get(position, ())],
                [plan.numbers[recomputation] for recomputation in plan.recomputed_before.get(position, ())],
            ),
            *(plan.moves_before(position), not plan.waits_for_evictions),
            *(position in plan.repeated_ops, not is_whole(op)),
        )
        for position, op in enumerate(trace.ops)
    ]
    recomputations = [(each.page, each.inputs, each.extra_bytes, each.ops) for each in plan.recomputations]
    return native.StepPlan(ops, [page.nbytes for page in trace.pages], recomputations)


class Callbacks:
    """What the native interposer calls."""

    def __init__(self, owner: PageOwner, mode: LmsMode, fast_path: NativeFastPath) -> None:
        self._owner = owner
        self.describe = described
        self.run = mode.run
        self.hold = mode.hold
        self.let_go = mode.let_go
        self.room_is_short = fast_path.room_is_short
        self.resized = fast_path.resized
        self.ended_pinned = fast_path.ended_pinned
        self.prepare = fast_path.prepare
        self.ended = fast_path.ended
        self.is_out_of_memory = owner.is_out_of_memory

    def born(self, tensor: torch.Tensor) -> None:
        """An operation made ``tensor``, whose storage may have to become a page."""
        self._owner.entries_of((tensor,), is_new=True)


class NativeInterposer(Interposer):
    """A fallback below autograd, on each thread that takes part. What it cannot decide the session's mode has."""

    name = "native"

    def __init__(
        self, native: Native, owner: PageOwner, mode: LmsMode, fast_path: NativeFastPath, table: NativePageTable
    ) -> None:
        super().__init__()
        self._native = native
        self._owner = owner
        self._table = table
        self._callbacks = Callbacks(owner, mode, fast_path)
        fast_path.most_at_once = mode.large.most_at_once

    def begin(self) -> None:
        unobserved.exclude = self._native.exclude
        sizes = {
            "min_size": self._owner.min_size,
            "filled_unseen": FILLED_UNSEEN,
            "read_unseen": READ_UNSEEN,
            "read_unseen_wide": READ_UNSEEN_WIDE,
            "large": LARGE,
            "runs": RUNS,
        }
        self._native.start(self._callbacks, self._owner.kind, sizes, self._table.default.executor.has_streams)

    def end(self) -> None:
        self._native.stop()

    def _attach(self) -> bool:
        return not self._native.include(True)

    def _detach(self) -> None:
        self._native.include(False)

    def step_ends(self) -> None:
        super().step_ends()
        self._native.set_asides(self.asides.threads)

    def unseen(self) -> AbstractContextManager[Any]:
        return excluded(self._native, True)

    def set_min_size(self, nbytes: int) -> None:
        self._native.set_min_size(nbytes)

    def watch_all(self, always: bool) -> None:
        self._native.ask_python(always)


@contextmanager
def excluded(native: Native, is_excluded: bool) -> Iterator[None]:
    """Inside, the calling thread's operations pass the interposer by, or do not."""
    before = native.exclude(is_excluded)
    try:
        yield
    finally:
        native.exclude(before)
