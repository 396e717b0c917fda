"""Steps on a virtual clock: the pager decides as it does for real, and copies take the modelled machine's time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from torch_lms.pager import (
    Action,
    Copied,
    Created,
    Died,
    Discard,
    Drop,
    Event,
    FinishEvict,
    FinishFetch,
    LimitChanged,
    OpBegins,
    OpEnds,
    Pager,
    Remake,
    StartEvict,
    StartFetch,
    StepEnded,
    drive,
)
from torch_lms.policy import Guide, Plan, Planned, Policy, Recipe
from torch_lms.residency import Ledger, PageId, Tier
from torch_lms.sim.lanes import Lanes, LinkSpeeds
from torch_lms.timeline import Log, Timeline
from torch_lms.trace import Trace


@dataclass(frozen=True)
class SimulatedStep:
    """One step.

    Attributes:
        seconds: from its first operation to the first of the next.
        stall_s: of these, waiting for copies.
        copying_s: of these, lost to copies that the program's own cores make.
        recompute_s: of these, making pages again.
        peak_bytes: most on the device at once, pages and workspaces.
        host_bytes, disk_bytes: most there.
        out_bytes, in_bytes: moved.
        recomputed_bytes: of the pages made again.
        timeline: what was done and when.
    """

    seconds: float
    stall_s: float
    copying_s: float
    recompute_s: float
    peak_bytes: int
    host_bytes: int
    disk_bytes: int
    out_bytes: int
    in_bytes: int
    recomputed_bytes: int
    timeline: Timeline


@dataclass(slots=True)
class _Peak:
    """The most at once."""

    device: int = 0
    host: int = 0
    disk: int = 0

    def note(self, ledger: Ledger, more_bytes: int) -> None:
        """What there is now, and ``more_bytes`` on the device that are no pages."""
        self.device = max(self.device, ledger.device + more_bytes)
        self.host, self.disk = max(self.host, ledger.host), max(self.disk, ledger.disk)


class Simulator:
    """Runs ``trace`` again and again.

    Args:
        trace: a step, its operations with their seconds.
        limit: bytes of the device that pages may occupy.
        tiers: the lower tiers, nearest first, and the most bytes of each.
        speeds: of the links.
        policy: chooses victims; a ``Planned`` one follows ``plan``.
        plan: for such steps.
        is_blocking: whether whoever starts a copy waits until it has ended, and copies nothing beside operations.
        keeps_copies: whether a page that came back and was not written may leave again without a copy.
        grows: whether ``limit`` rises to whatever an operation needs beyond it.
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
    ) -> None:
        self.pager = Pager(limit, policy, tiers)
        self._trace, self._policy, self._plan = trace, policy, plan
        self._is_blocking, self._keeps_copies, self._grows = is_blocking, keeps_copies, grows
        self._lanes, self._lost = Lanes(speeds), speeds.lost
        self._now_s = 0.0
        self._ids = count()
        self._of: dict[int, PageId] = {}  # by number in the trace
        self._deaths: list[list[int]] = [[] for _ in trace.ops]
        for number, page in enumerate(trace.pages):
            if page.dead < len(trace.ops):
                self._deaths[max(page.dead, 0)].append(number)
        self._recipes: dict[PageId, Recipe] = {}  # of pages that are dropped
        self._stall_s = self._copying_s = self._recompute_s = 0.0
        self._log = Log()
        self._peak = _Peak()

    def step(self) -> SimulatedStep:
        """One step, with the pages where the step before left them."""
        for number, page in enumerate(self._trace.pages):
            if page.born < 0 and number not in self._of:
                self._create(number)
        guide = self._new_guide()
        began_s, self._log, self._peak = self._now_s, Log(), _Peak()
        self._stall_s = self._copying_s = self._recompute_s = 0.0
        counters, copies = self.pager.counters, len(self._lanes.spans)
        out, back, made = counters.evicted_bytes, counters.fetched_bytes, counters.recomputed_bytes
        for position in range(len(self._trace.ops)):
            self._op(position, guide)
        self._tell(StepEnded())
        self._end_step()
        self._log.add(*self._lanes.spans[copies:])
        return SimulatedStep(
            seconds=self._now_s - began_s,
            stall_s=self._stall_s,
            copying_s=self._copying_s,
            recompute_s=self._recompute_s,
            peak_bytes=self._peak.device,
            host_bytes=self._peak.host,
            disk_bytes=self._peak.disk,
            out_bytes=counters.evicted_bytes - out,
            in_bytes=counters.fetched_bytes - back,
            recomputed_bytes=counters.recomputed_bytes - made,
            timeline=self._log.timeline(),
        )

    def _new_guide(self) -> Guide | None:
        if self._plan is None or not isinstance(self._policy, Planned):
            return None
        known = {self._of[number]: number for number, page in enumerate(self._trace.pages) if page.born < 0}
        living = [(page, self._trace.pages[number].nbytes) for page, number in known.items()]
        self._policy.guide = Guide(replace(self._plan, known=known), living)
        return self._policy.guide

    def _op(self, position: int, guide: Guide | None) -> None:
        op = self._trace.ops[position]
        pages = tuple(self._of[number] for number in op.pages)
        if guide is not None:
            guide.begins(op.name, pages)
        if landed := self._lanes.landed(self._now_s):
            self._tell(Copied(tuple(landed)))
        written = tuple(self._of[number] for number in op.writes)
        self._tell(OpBegins(pages, op.new_bytes, written if self.pager.has_dropped else ()))
        ledger = self.pager.book.ledger
        self._log.op_begins(op.name, self._now_s, ledger.device, ledger.host, ledger.disk)
        for number in op.creates:
            page = self._create(number)
            if guide is not None:
                guide.created(page, self._trace.pages[number].nbytes)
        self._peak.note(ledger, op.work.workspace_bytes if op.work is not None else 0)
        self._now_s += op.seconds
        self._log.op_ends(self._now_s)
        if self._grows and self.pager.room < 0:
            self._tell(LimitChanged(ledger.device))
        self._tell(OpEnds(pages, written if self._keeps_copies else pages))
        for number in self._deaths[position]:
            self._die(number, guide)

    def _create(self, number: int) -> PageId:
        page = self._of[number] = next(self._ids)
        traced = self._trace.pages[number]
        self._tell(Created(page, traced.nbytes, traced.unpageable))
        return page

    def _die(self, number: int, guide: Guide | None) -> None:
        page = self._of.pop(number, None)
        if page is None:
            return
        if guide is not None:
            guide.died(page)
        if page in self._lanes.done_s:
            self._lanes.done_s[page] = self._now_s  # nobody waits for it
        self._tell(Died(page))

    def _end_step(self) -> None:
        """Pages that live on have other numbers in the next step."""
        for number in [number for number in self._of if self._trace.pages[number].becomes < 0]:
            self._die(number, None)
        self._of = {self._trace.pages[number].becomes: page for number, page in self._of.items()}

    def _tell(self, event: Event) -> None:
        actions = self.pager.handle(event)
        if actions:
            drive(actions, self._perform)

    def _perform(self, action: Action) -> None:
        lanes = self._lanes
        if isinstance(action, Discard):
            return  # its copy costs nothing any more
        page = self.pager.book[action.page]
        if isinstance(action, StartEvict):
            lanes.evict(page.id, page.nbytes, action.tier, self._now_s)
            self._lose()
        elif isinstance(action, StartFetch):
            assert page.tier is not None
            lanes.fetch(page.id, page.nbytes, page.tier, self._now_s)
            self._lose()
        elif isinstance(action, FinishEvict | FinishFetch):
            self._wait_until(lanes.done_s.pop(page.id))
        elif isinstance(action, Drop):
            self._recipes[page.id] = action.recipe
        elif isinstance(action, Remake):
            self._make(page.id, page.nbytes)
        if self._is_blocking and page.id in lanes.done_s:
            self._wait_until(lanes.done_s[page.id])

    def _lose(self) -> None:
        """The program's cores make the copy that was just asked for: what that takes is lost, beside it or before."""
        if self._lost:
            copy = self._lanes.spans[-1]
            lost_s = self._lost * (copy.end_s - copy.start_s)
            self._log.spent("copying", self._now_s, self._now_s + lost_s, copy.nbytes, copy.page)
            self._copying_s += lost_s
            self._now_s += lost_s

    def _wait_until(self, then_s: float) -> None:
        if then_s > self._now_s:
            self._log.spent("stall", self._now_s, then_s)
            self._stall_s += then_s - self._now_s
            self._now_s = then_s

    def _make(self, page: PageId, nbytes: int) -> None:
        recipe = self._recipes.pop(page)
        seconds = sum(self._trace.ops[op].seconds for op in recipe.ops)
        self._peak.note(self.pager.book.ledger, nbytes + recipe.extra_bytes)
        self._log.spent("recompute", self._now_s, self._now_s + seconds, nbytes, page)
        self._recompute_s += seconds
        self._now_s += seconds
