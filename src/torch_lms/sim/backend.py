"""The backend of a modelled machine: what is asked for takes time on virtual clocks."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch_lms.engine import Mark, Spent
from torch_lms.pager import Action, Discard, FinishEvict, FinishFetch, Pager, Recompute, StartEvict, StartFetch
from torch_lms.residency import Ledger, PageId, Tier
from torch_lms.sim.clocks import Clocks, HostWork
from torch_lms.sim.lanes import Lanes, LinkSpeeds
from torch_lms.timeline import Copies
from torch_lms.trace import Trace, TracedOp

_UNOBSERVED = nullcontext()


class LaneBackend:
    """Transfers go by lanes, first come, first served (see ``engine.Backend``).

    Args:
        trace: the step; its operations say how long a recomputation takes.
        tiers: the lower tiers, nearest first, and the most bytes of each.
        speeds: of the links.
        is_blocking: whether whoever starts a transfer waits until it has ended, and moves nothing beside operations.
        host: what the host does.

    Attributes:
        clocks: of the host and of the device.
        pager: whose pages these are; set once it exists.
        repeat_s, launch_s, action_s: see ``engine.Backend``. The host's clock has what actions take.
        stall_s, copying_s, recompute_s: since ``begin_step``, waiting for transfers, lost to transfers that the
            program's own cores make, and recomputing pages.
        peak_bytes, host_bytes, disk_bytes: since then, the most bytes on the device, workspaces included, and in each
            lower tier.
    """

    pager: Pager
    repeat_s = launch_s = action_s = 0.0

    def __init__(
        self, trace: Trace, tiers: Mapping[Tier, int], speeds: LinkSpeeds, is_blocking: bool, host: HostWork
    ) -> None:
        self.tiers = tiers
        self.clocks = Clocks(host)
        self._trace = trace
        self._lanes = Lanes(speeds)
        self._overlap_penalty = speeds.overlap_penalty
        self._is_blocking = is_blocking
        self._taken = 0
        self.begin_step()

    def begin_step(self) -> None:
        """Start to sum up anew."""
        self.clocks.begin_step()
        self.stall_s = 0.0
        self.copying_s = 0.0
        self.recompute_s = 0.0
        self.peak_bytes = 0
        self.host_bytes = 0
        self.disk_bytes = 0

    @property
    def now_s(self) -> float:
        """Seconds of the device's clock: what the program has asked for so far is done then."""
        return self.clocks.now_s

    def run(self, op: TracedOp) -> None:
        """An operation of the program's runs."""
        self.clocks.run(op)

    def note_peak(self, ledger: Ledger, more_bytes: int) -> None:
        """There are the bytes of ``ledger`` now, and ``more_bytes`` on the device that are no pages."""
        self.peak_bytes = max(self.peak_bytes, ledger.device + more_bytes)
        self.host_bytes = max(self.host_bytes, ledger.host)
        self.disk_bytes = max(self.disk_bytes, ledger.disk)

    def forget(self, page: PageId) -> None:
        """``page`` is about to die: nobody waits for its transfer."""
        if page in self._lanes.done_s:
            self._lanes.done_s[page] = self.clocks.host_s

    # -- as a backend ------------------------------------------------------------------------------------------------

    @property
    def overlap_penalty(self) -> float:
        """See ``engine.Backend``."""
        return self._overlap_penalty

    @property
    def disk_bytes_per_s(self) -> tuple[float, float]:
        """See ``engine.Backend``."""
        return self._lanes.speeds.disk_write, self._lanes.speeds.disk_read

    def perform(self, action: Action, spent: Spent) -> None:
        """Let ``action`` take its time."""
        if isinstance(action, Discard):
            return  # its copy costs nothing any more
        self.clocks.act()
        lanes = self._lanes
        page = self.pager.book[action.page]
        if isinstance(action, StartEvict):
            in_host_s = lanes.evict(page.id, page.nbytes, action.tier, self.now_s)
            self._lose(spent)
            if self._blocks_host(action.tier):
                self._host_waits_until(in_host_s)  # for one of the two buffers on the way to the disk
        elif isinstance(action, StartFetch):
            assert page.tier is not None
            in_host_s = lanes.fetch(page.id, page.nbytes, page.tier, self.now_s, self.clocks.host_s)
            self._lose(spent)
            if self._blocks_host(page.tier):
                self._host_waits_until(in_host_s)
        elif isinstance(action, FinishEvict | FinishFetch):
            done_s = lanes.done_s.pop(page.id)
            if isinstance(action, FinishEvict) and self._blocks_host(page.tier):
                self._host_waits_until(done_s)
            else:
                self._wait_until(done_s)
        elif isinstance(action, Recompute):
            self._recompute(page.id, page.nbytes, spent)
        if self._is_blocking and page.id in lanes.done_s:
            self._host_waits_until(lanes.done_s[page.id])

    def _blocks_host(self, tier: Tier | None) -> bool:
        """Whether a host that runs ahead has to wait for copies between it and ``tier`` (N5)."""
        return tier is Tier.DISK and self.clocks.is_ahead

    def unobserved(self) -> AbstractContextManager[object]:
        """See ``engine.Backend``."""
        return _UNOBSERVED

    def landed(self) -> Sequence[PageId]:
        """See ``engine.Backend``. A host that runs ahead sees what has ended by its own time."""
        return self._lanes.landed(self.clocks.host_s)

    def use(self, pages: Sequence[PageId]) -> None:
        """There is one stream."""

    def grows(self, new_bytes: int, resident_bytes: int, limit: int) -> None:
        """What is freed is given out again."""

    def mark(self) -> Mark:
        """See ``engine.Backend``."""
        return self.now_s

    def seconds(self, mark: Mark) -> float:
        """See ``engine.Backend``."""
        seconds: float = mark
        return seconds

    @property
    def transfers_made(self) -> int:
        """All are taken at the end of a step."""
        return 0

    def take_transfers(self) -> Copies:
        """See ``engine.Backend``; those that are under way included."""
        transfers = Copies.of(self._lanes.spans[self._taken :])
        self._taken = len(self._lanes.spans)
        return transfers

    # -- time --------------------------------------------------------------------------------------------------------

    def _lose(self, spent: Spent) -> None:
        """The program's cores make the copy that was just asked for: what that takes is lost, beside it or before."""
        if not self._overlap_penalty:
            return
        spent("stall", 0, -1)
        copy = self._lanes.spans[-1]
        lost_s = self._overlap_penalty * (copy.end_s - copy.start_s)
        self.copying_s += lost_s
        self.clocks.pass_by(lost_s)
        spent("copying", copy.nbytes, copy.page)

    def _wait_until(self, then_s: float) -> None:
        """The device waits for a copy."""
        self.stall_s += self.clocks.wait_until(then_s)

    def _host_waits_until(self, then_s: float) -> None:
        """The host waits for a copy."""
        self.stall_s += self.clocks.host_waits_until(then_s)

    def _recompute(self, page: PageId, nbytes: int, spent: Spent) -> None:
        recipe = self.pager.recipes[page]
        ops = [self._trace.ops[op] for op in recipe.ops]
        self.note_peak(self.pager.book.ledger, nbytes + recipe.extra_bytes)
        spent("stall", 0, -1)
        for op in ops:
            self.clocks.run(op)
            self.recompute_s += op.seconds
        spent("recompute", nbytes, page)
