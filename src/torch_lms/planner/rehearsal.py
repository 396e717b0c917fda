"""How long steps take that follow a plan: quick, for the hundreds of plans that are weighed against each other.

What happens is what the engine, its pager and a cursor would do with pages that never fail to move
(``pager.Pager.op_begins``, ``policy.PlanCursor``), written out for one step that is known from its first operation to
its last. tests/pure/test_planner_rehearsal.py holds it to the simulator, which has the pager itself decide.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import count
from math import inf
from typing import NamedTuple

from torch_lms.engine import Speeds
from torch_lms.planner.recomputation import repeat_s
from torch_lms.policy import Plan, Recomputation, inputs_first
from torch_lms.sim import Clocks, HostWork
from torch_lms.trace import Trace

_RESIDENT, _CLEAN, _EVICTING, _FETCHING, _EVICTED, _DROPPED = range(6)
"""States of a page, as in ``residency.State``."""

_MAY_LEAVE = (_RESIDENT, _CLEAN, _EVICTING)


class Rehearsed(NamedTuple):
    """One step, as far as plans are compared by it; see ``sim.SimulatedStep``."""

    seconds: float
    peak_bytes: int
    evicted_bytes: int
    fetched_bytes: int


class _Op(NamedTuple):
    """What an operation does, with what a rehearsal would else look up again and again."""

    pages: tuple[int, ...]
    used_next: tuple[tuple[int, int], ...]  # each of the pages with what ``_used_next`` says of it
    creates: tuple[int, ...]
    writes: tuple[int, ...]
    new_bytes: int
    workspace_bytes: int
    deaths: tuple[int, ...]


class Stage:
    """What is the same for all plans of one step.

    Args:
        trace: the step.
        limit: bytes of the device that its pages may occupy.
        speeds: of the link.
    """

    def __init__(self, trace: Trace, limit: int, speeds: Speeds) -> None:
        self.trace = trace
        self.limit = limit
        self.speeds = speeds
        self.nbytes = [page.nbytes for page in trace.pages]
        self.from_before = [number for number, page in enumerate(trace.pages) if page.born < 0]
        self.can_leave = [not page.unpageable for page in trace.pages]
        self.used_first = [_used_next(trace, number, page.born) for number, page in enumerate(trace.pages)]
        deaths: list[list[int]] = [[] for _ in trace.ops]
        for number, page in enumerate(trace.pages):
            if page.dead < len(trace.ops):
                deaths[max(page.dead, 0)].append(number)
        self.ops = [
            _Op(
                op.pages,
                tuple((page, _used_next(trace, page, position)) for page in op.pages),
                op.creates,
                op.writes,
                op.new_bytes,
                op.work.workspace_bytes if op.work is not None else 0,
                tuple(dead),
            )
            for position, (op, dead) in enumerate(zip(trace.ops, deaths, strict=True))
        ]
        self.seconds_left = [trace.starts_s[-1] - start_s for start_s in trace.starts_s]

    def rehearse(self, plan: Plan, give_up_s: float) -> Rehearsed | None:
        """The second of two steps that follow ``plan``: the first begins with nothing away.

        None as soon as it is known that the step takes longer than ``give_up_s``.
        """
        rehearsal = _Rehearsal(self, plan)
        rehearsal.step()
        return rehearsal.step(give_up_s)


def _used_next(trace: Trace, page: int, position: int) -> int:
    """The first operation after ``position`` that uses ``page``. Those of the next step are counted on."""
    uses = trace.uses[page]
    index = bisect_right(uses, position)
    if index < len(uses):
        return uses[index]
    outlives_step = trace.pages[page].dead == len(trace.ops)
    successor = trace.pages[page].successor if outlives_step else -1
    uses_in_next_step = trace.uses[successor] if successor >= 0 else ()
    return len(trace.ops) + (uses_in_next_step[0] if uses_in_next_step else len(trace.ops))


class _Rehearsal:
    """Pages, links and a virtual clock. Pages are known by their numbers in the trace; each step gives them anew."""

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self._stage = stage
        self._plan = plan
        self._nbytes = stage.nbytes
        speeds = stage.speeds
        self._clocks = Clocks(HostWork(speeds.launch_s, 0.0, speeds.action_s, is_ahead=speeds.launch_s > 0))
        self._free_s = {_EVICTING: 0.0, _FETCHING: 0.0}  # when the link is, in each direction
        self._disk_free_s = 0.0
        self._on_disk: dict[int, bool] = {}  # of pages with a copy
        self._in_host = 0  # bytes of the others' copies
        self._held = 0  # bytes on the device
        self._state: dict[int, int] = {}
        self._pins: dict[int, int] = {}
        # Candidates for eviction by state, the oldest first.
        self._candidates: dict[int, dict[int, None]] = {state: {} for state in _MAY_LEAVE}
        self._done_s: dict[int, float] = {}  # when copies under way end
        self._next_done_s = inf  # when the first of these does, or before
        self._dropped: dict[int, Recomputation] = {}
        self._dependents: dict[int, dict[int, None]] = {}  # of each input, the dropped pages recomputed from it

    def step(self, give_up_s: float | None = None) -> Rehearsed | None:
        """One step, with the pages where the step before left them."""
        for page in self._stage.from_before:
            if page not in self._state:
                self._create(page)
        self._used_next = self._stage.used_first.copy()
        away = [number for number in self._stage.from_before if number in self._plan.away]
        self._order = count()
        self._due = {page: next(self._order) for page in away}  # in which order they became due
        self._to_evict = dict.fromkeys(away)  # also those under way, which are freed when their copies have ended
        self._evict_now = away
        self._to_fetch: dict[int, None] = {}
        self._wants_fetches = False  # whether one of them may be away
        self._to_drop: dict[int, Recomputation] = {}
        self._recipes: dict[int, Recomputation] = {}
        self._peak_bytes = self._evicted_bytes = self._fetched_bytes = 0
        began_s = self._clocks.now_s
        seconds_left = self._stage.seconds_left
        for position, op in enumerate(self._stage.ops):
            self._move_on(position, op)
            self._begin(op)
            for page in op.creates:
                self._create(page)
            self._peak_bytes = max(self._peak_bytes, self._held + op.workspace_bytes)
            self._clocks.run(self._stage.trace.ops[position])
            self._end(op)
            if give_up_s is not None and self._clocks.now_s - began_s + seconds_left[position + 1] > give_up_s:
                return None
        if self._held > self._stage.limit:
            self._free(self._held - self._stage.limit)
        self._renumber()
        return Rehearsed(self._clocks.now_s - began_s, self._peak_bytes, self._evicted_bytes, self._fetched_bytes)

    # -- the cursor --------------------------------------------------------------------------------------------------

    def _move_on(self, position: int, op: _Op) -> None:
        """What the plan has away from here on is due; what it has back is to be fetched."""
        plan = self._plan
        if position:
            for page in plan.evicts[position - 1]:
                self._due.setdefault(page, next(self._order))
                self._to_evict[page] = None
                self._evict_now.append(page)
            for recomputation in plan.dropped_after.get(position - 1, ()):
                if all(page in self._state for page in (recomputation.page, *recomputation.inputs)):
                    page = recomputation.page
                    self._due.setdefault(page, next(self._order))
                    self._to_drop[page] = self._recipes[page] = recomputation
        if self._due or self._to_fetch:
            self._forget(op.pages)
        for page, used_next in op.used_next:
            self._used_next[page] = used_next
        if self._recipes:
            for page in op.pages:
                self._recipes.pop(page, None)
        for recomputation in plan.recomputed_before.get(position, ()):
            self._forget(recomputation.inputs)
        if plan.fetches[position]:
            to_fetch = [page for page in plan.fetches[position] if page in self._state]
            self._forget(to_fetch)
            self._to_fetch.update(dict.fromkeys(to_fetch))
            self._wants_fetches = True

    def _forget(self, pages: Iterable[int]) -> None:
        """``pages`` are in use, or to be fetched: they are not due any more."""
        for page in pages:
            if page in self._due:
                del self._due[page]
                self._to_evict.pop(page, None)
                self._to_drop.pop(page, None)
            self._to_fetch.pop(page, None)

    # -- around an operation -----------------------------------------------------------------------------------------

    def _begin(self, op: _Op) -> None:
        """Have the pages of ``op`` there, and room for what it creates; then start what the plan wants beside it."""
        seen_s = self._clocks.host_s
        if self._next_done_s <= seen_s:
            self._finish([page for page, done_s in self._done_s.items() if done_s <= seen_s])
            self._next_done_s = min(self._done_s.values(), default=inf)
        evict, self._evict_now = self._evict_now, []
        away = self._pin(op.pages)
        if evict:
            for page in sorted((page for page in evict if page in self._to_evict), key=self._due.__getitem__):
                self._start_eviction(page)
        if self._to_drop:
            self._drop_or_evict()
        if self._dropped:
            lost = [page for page in away if self._state[page] == _DROPPED]
            dependents = [page for written in op.writes for page in self._dependents.get(written, ())]
            self._recompute_all([*lost, *dependents])
        self._bring(away, op.new_bytes)
        if self._wants_fetches:
            self._start_fetches(op.new_bytes)

    def _end(self, op: _Op) -> None:
        for page in op.writes:
            if self._state[page] == _CLEAN:
                self._become(page, _RESIDENT)
        self._unpin(op.pages)
        for page in op.deaths:
            self._die(page)

    def _bring(self, away: list[int], nbytes: int) -> None:
        """Make room for those of ``away`` that were evicted, and for ``nbytes``; then have all of them there."""
        missing = nbytes + self._held - self._stage.limit
        for page in away:
            if self._state[page] == _EVICTED:
                missing += self._nbytes[page]
        if missing > 0:
            self._free(missing)
        for page in away:
            if self._state[page] == _EVICTED:
                self._start_fetch(page)
        for page in away:
            if page in self._done_s:
                self._wait_for(page)

    def _pin(self, pages: tuple[int, ...]) -> list[int]:
        """Keep ``pages`` from leaving; those that are away or under way."""
        unready = []
        for page in pages:
            self._pins[page] += 1
            state = self._state[page]
            if state <= _EVICTING:
                self._candidates[state].pop(page, None)
            if state > _CLEAN:
                unready.append(page)
        return unready

    def _unpin(self, pages: tuple[int, ...]) -> None:
        for page in pages:
            if page in self._pins:
                self._pins[page] -= 1
                self._offer(page)

    # -- evicting and dropping ---------------------------------------------------------------------------------------

    def _free(self, nbytes: int) -> None:
        """Evict or drop pages until so many bytes are freed, or none is left. Waits for the copies."""
        freed = 0
        while freed < nbytes:
            freed += self._free_once(nbytes - freed)
            if freed >= nbytes:
                return
            arriving = [page for page in self._done_s if self._state[page] == _FETCHING and not self._pins[page]]
            if not arriving:
                return
            self._finish(arriving, waits=True)

    def _free_once(self, nbytes: int) -> int:
        leaving: list[int] = []
        chosen = dropped = 0
        for page in self._victims():
            if chosen >= nbytes:
                break
            if not self._is_candidate(page):
                continue
            recomputation = self._recipes.get(page)
            if recomputation is not None and self._drop(page, recomputation):
                dropped += self._nbytes[page]
            else:
                if self._state[page] == _RESIDENT:
                    self._start_eviction(page)
                self._candidates[self._state[page]].pop(page, None)
                leaving.append(page)
            chosen += self._nbytes[page]
        for page in leaving:
            if self._state[page] == _EVICTING:
                self._wait_for(page)
            self._release(page)
        return dropped + sum(self._nbytes[page] for page in leaving)

    def _victims(self) -> Iterable[int]:
        """Those that are due; then all others, those used last first."""
        candidates = [page for state in (_CLEAN, _EVICTING, _RESIDENT) for page in self._candidates[state]]
        due = [page for page in candidates if page in self._due]
        yield from sorted(due, key=self._due.__getitem__)
        others = [page for page in candidates if page not in self._due]
        yield from sorted(others, key=self._used_next.__getitem__, reverse=True)

    def _start_eviction(self, page: int) -> None:
        """Start to copy a candidate down, or free it if there is a copy."""
        if not self._is_candidate(page):
            return
        if self._state[page] == _RESIDENT:
            self._become(page, _EVICTING)
            self._copy_down(page)
        elif self._state[page] == _CLEAN:
            self._release(page)

    def _release(self, page: int) -> None:
        self._clocks.act()
        self._to_evict.pop(page, None)
        self._wants_fetches = self._wants_fetches or page in self._to_fetch
        self._become(page, _EVICTED)
        self._held -= self._nbytes[page]

    def _drop_or_evict(self) -> None:
        """Free the pages that the plan has dropped by now, but for those of which an input is in use."""
        for page, recomputation in list(self._to_drop.items()):
            if not self._is_candidate(page):
                del self._to_drop[page]
                continue
            is_any_in_use = any(self._pins.get(other) for other in recomputation.inputs)
            if not is_any_in_use and not self._drop(page, recomputation):
                self._start_eviction(page)

    def _drop(self, page: int, recomputation: Recomputation) -> bool:
        """Free the page without a copy, if that is possible now."""
        if self._state[page] != _RESIDENT:
            return False
        for other in recomputation.inputs:
            if other not in self._state or not self._stage.can_leave[other] or self._pins[other]:
                return False
        self._clocks.act()
        self._become(page, _DROPPED)
        self._clocks.pass_by(repeat_s(recomputation, self._stage.speeds) / 2)
        self._held -= self._nbytes[page]
        self._dropped[page] = recomputation
        for other in recomputation.inputs:
            self._dependents.setdefault(other, {})[page] = None
        return True

    # -- fetching and recomputing ------------------------------------------------------------------------------------

    def _start_fetches(self, new_bytes: int) -> None:
        """Start to fetch what the plan wants by now, as long as there is room beside ``new_bytes``."""
        for page in self._to_fetch:
            if self._state[page] == _EVICTED:
                if self._stage.limit - self._held - new_bytes < self._nbytes[page]:
                    return
                self._start_fetch(page)
        self._wants_fetches = False

    def _start_fetch(self, page: int) -> None:
        self._become(page, _FETCHING)
        self._held += self._nbytes[page]
        self._copy_up(page)

    def _recompute_all(self, pages: list[int]) -> None:
        for page in pages:
            if page in self._dropped:
                self._recompute_chain(page)

    def _recompute_chain(self, page: int) -> None:
        """Recompute the page, and before it what it needs. Inputs are pinned until they have been used."""
        unready: dict[int, list[int]] = {}

        def missing_input(waiting: int) -> int | None:
            if waiting not in unready:
                unready[waiting] = self._pin(self._dropped[waiting].inputs)
            return next((other for other in unready[waiting] if self._state[other] == _DROPPED), None)

        for chain in inputs_first(page, missing_input):
            first = chain[-1]
            recomputation = self._dropped[first]
            self._bring(unready[first], self._nbytes[first] + recomputation.extra_bytes)
            self._peak_bytes = max(self._peak_bytes, self._held + self._nbytes[first] + recomputation.extra_bytes)
            self._clocks.act()
            for op in recomputation.ops:
                self._clocks.run(self._stage.trace.ops[op])
            self._clocks.pass_by(repeat_s(recomputation, self._stage.speeds) / 2)
            self._undrop(first)
            self._become(first, _RESIDENT)
            self._held += self._nbytes[first]
            self._unpin(recomputation.inputs)

    def _undrop(self, page: int) -> None:
        for other in self._dropped.pop(page).inputs:
            del self._dependents[other][page]

    # -- copies ------------------------------------------------------------------------------------------------------

    def _copy_down(self, page: int) -> None:
        nbytes = self._nbytes[page]
        is_on_disk = self._on_disk[page] = not self._has_room_in_host(nbytes)
        self._clocks.act()
        self._copy(page, _EVICTING, self._stage.speeds.d2h, self._clocks.now_s)
        if is_on_disk:
            in_host_s = self._done_s[page]
            start_s = max(in_host_s, self._disk_free_s)
            self._disk_free_s = self._done_s[page] = start_s + nbytes / self._stage.speeds.disk_write
            self._host_waits_until(in_host_s)
        else:
            self._in_host += nbytes
        self._next_done_s = min(self._next_done_s, self._done_s[page])

    def _copy_up(self, page: int) -> None:
        self._clocks.act()
        in_host_s = self._clocks.now_s
        if self._on_disk[page]:
            start_s = max(self._clocks.host_s, self._disk_free_s)
            in_host_s = self._disk_free_s = start_s + self._nbytes[page] / self._stage.speeds.disk_read
        self._copy(page, _FETCHING, self._stage.speeds.h2d, max(in_host_s, self._clocks.now_s))
        if self._on_disk[page]:
            self._host_waits_until(in_host_s)
        self._next_done_s = min(self._next_done_s, self._done_s[page])

    def _copy(self, page: int, direction: int, bytes_per_s: float, from_s: float) -> None:
        """A copy over the link, which may begin at ``from_s``."""
        copy_s = self._nbytes[page] / bytes_per_s
        start_s = max(from_s, self._free_s[direction])
        self._free_s[direction] = self._done_s[page] = start_s + copy_s
        self._clocks.pass_by(self._stage.speeds.overlap_penalty * copy_s)  # the program's cores make the copy

    def _host_waits_until(self, then_s: float) -> None:
        """A host that runs ahead waits for the disk itself (N5)."""
        if self._clocks.is_ahead:
            self._clocks.host_waits_until(then_s)

    def _has_room_in_host(self, nbytes: int) -> bool:
        """Whether a copy finds room in host memory, if need be for copies of pages in use."""
        missing = self._in_host + nbytes - self._stage.speeds.host_bytes
        if missing <= 0:
            return True
        in_use = [page for page, is_on_disk in self._on_disk.items() if not is_on_disk and self._is_in_use(page)]
        if sum(self._nbytes[page] for page in in_use) < missing:
            return False
        for page in in_use:
            if missing > 0:
                missing -= self._nbytes[page]
                self._become(page, _RESIDENT)
        return True

    def _is_in_use(self, page: int) -> bool:
        return self._pins[page] > 0 and self._state[page] == _CLEAN

    def _lose_copy(self, page: int) -> None:
        if self._on_disk.pop(page, True):
            return
        self._in_host -= self._nbytes[page]

    def _wait_for(self, page: int) -> None:
        """Wait until the copy of ``page`` has ended."""
        self._clocks.act()
        done_s = self._done_s.pop(page)
        if self._state[page] == _EVICTING and self._on_disk[page]:
            self._host_waits_until(done_s)
        self._clocks.wait_until(done_s)
        if self._state[page] == _EVICTING:
            self._evicted_bytes += self._nbytes[page]
            self._evict_now.append(page)
        else:
            self._fetched_bytes += self._nbytes[page]
        self._become(page, _CLEAN)

    def _finish(self, pages: list[int], waits: bool = False) -> None:
        for page in pages:
            if page in self._done_s:
                self._wait_for(page)

    # -- pages -------------------------------------------------------------------------------------------------------

    def _is_candidate(self, page: int) -> bool:
        return page in self._candidates.get(self._state.get(page, _DROPPED), ())

    def _become(self, page: int, state: int) -> None:
        before = self._state[page]
        if before <= _EVICTING:
            self._candidates[before].pop(page, None)
        self._state[page] = state
        if state == _RESIDENT:
            self._lose_copy(page)
        self._offer(page)

    def _offer(self, page: int) -> None:
        """Make ``page`` the youngest candidate, if it may leave."""
        state = self._state[page]
        if state <= _EVICTING and not self._pins[page] and self._stage.can_leave[page]:
            self._candidates[state][page] = None

    def _create(self, page: int) -> None:
        self._state[page] = _RESIDENT
        self._pins[page] = 0
        self._held += self._nbytes[page]
        self._offer(page)

    def _die(self, page: int) -> None:
        if page not in self._state:
            return
        if page in self._done_s:
            self._done_s[page] = self._clocks.host_s  # nobody waits for it
            self._wait_for(page)
        state = self._state.pop(page)
        del self._pins[page]
        self._lose_copy(page)
        if state == _DROPPED:
            self._undrop(page)
        elif state != _EVICTED:
            self._held -= self._nbytes[page]
            if state <= _EVICTING:
                self._candidates[state].pop(page, None)
        self._forget((page,))
        self._recipes.pop(page, None)

    def _renumber(self) -> None:
        """Pages that live on have other numbers in the next step."""
        pages = self._stage.trace.pages
        for page in [page for page in self._state if pages[page].successor < 0]:
            self._die(page)
        successor = {page: pages[page].successor for page in self._state}
        self._state = {successor[page]: state for page, state in self._state.items()}
        self._pins = dict.fromkeys(self._state, 0)
        self._candidates = {state: {successor[page]: None for page in its} for state, its in self._candidates.items()}
        self._done_s = {successor[page]: done_s for page, done_s in self._done_s.items()}
        self._on_disk = {successor[page]: is_on_disk for page, is_on_disk in self._on_disk.items()}
        self._dropped = {
            successor[page]: recomputation._replace(inputs=tuple(successor[other] for other in recomputation.inputs))
            for page, recomputation in self._dropped.items()
        }
        self._dependents = {}
        for page, recomputation in self._dropped.items():
            for other in recomputation.inputs:
                self._dependents.setdefault(other, {})[page] = None
