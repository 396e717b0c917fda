"""Steps on a virtual clock: the engine decides as it does for real, and transfers take the modelled machine's time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count

from torch_lms.engine import Engine, OnePlan, StepRecord
from torch_lms.pager import Pager
from torch_lms.policy import Plan, Planned, Policy
from torch_lms.residency import PageId, Tier
from torch_lms.sim.backend import LaneBackend
from torch_lms.sim.clocks import NO_WORK, HostWork
from torch_lms.sim.lanes import LinkSpeeds
from torch_lms.timeline import Timeline
from torch_lms.trace import Trace


@dataclass(frozen=True)
class SimulatedStep:
    """One step.

    Attributes:
        seconds: from its first operation to the first of the next.
        stall_s: of these, waiting for transfers.
        copying_s: of these, lost to transfers that the program's own cores make.
        recompute_s: of these, recomputing pages.
        host_wait_s: of these, the device had nothing to do, since the host was at work.
        host_work_s: of the host's work.
        peak_bytes: most on the device at once, pages and workspaces.
        host_bytes, disk_bytes: most there.
        out_bytes, fetched_bytes: moved.
        recomputed_bytes: of the pages recomputed.
    """

    seconds: float
    stall_s: float
    copying_s: float
    recompute_s: float
    host_wait_s: float
    host_work_s: float
    peak_bytes: int
    host_bytes: int
    disk_bytes: int
    evicted_bytes: int
    fetched_bytes: int
    recomputed_bytes: int
    _record: StepRecord = field(repr=False, compare=False)

    @cached_property
    def timeline(self) -> Timeline:
        """What was done and when."""
        return self._record.timeline(float, is_synchronous=True)


class Simulator:
    """Runs ``trace`` again and again.

    Args:
        trace: a step, its operations with their seconds.
        limit: bytes of the device that pages may occupy.
        tiers: the lower tiers, nearest first, and the most bytes of each.
        speeds: of the links.
        policy: chooses victims; a ``Planned`` one follows ``plan``.
        plan: for such steps.
        is_blocking: whether whoever starts a transfer waits until it has ended, and moves nothing beside operations.
        keeps_copies: whether a page that was fetched and not written may leave again without a copy.
        grows: whether ``limit`` rises to whatever an operation needs beyond it.
        host: what the host does, beside a device whose kernels take the seconds of ``trace``. By default it takes no
            time.
    """

    def __init__(
        self,
        trace: Trace,
        limit: int,
        tiers: Mapping[Tier, int],
        speeds: LinkSpeeds,
        policy: Policy,
        plan: Plan | None = None,
        *,
        is_blocking: bool = False,
        keeps_copies: bool = True,
        grows: bool = False,
        host: HostWork = NO_WORK,
    ) -> None:
        self._trace = trace
        self._keeps_copies = keeps_copies
        self._grows = grows
        self._plans = OnePlan(plan) if plan is not None and isinstance(policy, Planned) else None
        self._backend = LaneBackend(trace, tiers, speeds, is_blocking, host)
        self._engine = Engine(self._backend, policy, limit, plans=self._plans)
        self._backend.pager = self._engine.pager
        self._new_ids = count()
        self._ids: dict[int, PageId] = {}  # by number in the trace
        self._deaths: list[list[int]] = [[] for _ in trace.ops]
        for number, page in enumerate(trace.pages):
            if page.dead < len(trace.ops):
                self._deaths[max(page.dead, 0)].append(number)

    @property
    def pager(self) -> Pager:
        """It decides what moves."""
        return self._engine.pager

    def step(self) -> SimulatedStep:
        """One step, with the pages where the step before left them."""
        engine, backend = self._engine, self._backend
        for number, page in enumerate(self._trace.pages):
            if page.born < 0 and number not in self._ids:
                self._create(number)
        if self._plans is not None:
            self._plans.living = {n: self._ids[n] for n, page in enumerate(self._trace.pages) if page.born < 0}
        began_s = backend.now_s
        backend.begin_step()
        engine.step_begins(is_short=True)
        record = engine.record
        assert record is not None
        counters = engine.pager.counters
        evicted_bytes, fetched_bytes = counters.evicted_bytes, counters.fetched_bytes
        recomputed_bytes = counters.recomputed_bytes
        for position in range(len(self._trace.ops)):
            self._run_op(position)
        engine.step_ended()
        self._renumber()
        record.finish(backend.now_s)
        return SimulatedStep(
            seconds=backend.now_s - began_s,
            stall_s=backend.stall_s,
            copying_s=backend.copying_s,
            recompute_s=backend.recompute_s,
            host_wait_s=backend.clocks.host_wait_s,
            host_work_s=backend.clocks.host_work_s,
            peak_bytes=backend.peak_bytes,
            host_bytes=backend.host_bytes,
            disk_bytes=backend.disk_bytes,
            evicted_bytes=counters.evicted_bytes - evicted_bytes,
            fetched_bytes=counters.fetched_bytes - fetched_bytes,
            recomputed_bytes=counters.recomputed_bytes - recomputed_bytes,
            _record=record,
        )

    def _run_op(self, position: int) -> None:
        op = self._trace.ops[position]
        engine, pager = self._engine, self._engine.pager
        pages = tuple([self._ids[number] for number in op.pages])
        written = tuple([self._ids[number] for number in op.writes])
        engine.op_begins(op, pages, op.new_bytes, written)
        for number in op.creates:
            self._create(number)
        self._backend.note_peak(pager.book.ledger, op.work.workspace_bytes if op.work is not None else 0)
        self._backend.run(op)
        if self._grows and pager.room < 0:
            engine.set_soft_limit(pager.book.ledger.device)
        engine.op_ends(pages, written if self._keeps_copies else pages)
        for number in self._deaths[position]:
            self._die(number)

    def _create(self, number: int) -> None:
        page = self._ids[number] = next(self._new_ids)
        traced = self._trace.pages[number]
        self._engine.created(page, traced.nbytes, traced.unpageable)

    def _die(self, number: int) -> None:
        page = self._ids.pop(number, None)
        if page is not None:
            self._backend.forget(page)
            self._engine.died(page)

    def _renumber(self) -> None:
        """Pages that live on have other numbers in the next step."""
        for number in [number for number in self._ids if self._trace.pages[number].successor < 0]:
            self._die(number)
        self._ids = {self._trace.pages[number].successor: page for number, page in self._ids.items()}
