"""The backend of a modelled machine: what is asked for takes time on a virtual clock."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch_lms.engine import Mark, Spent
from torch_lms.pager import Action, Discard, FinishEvict, FinishFetch, Pager, Recompute, StartEvict, StartFetch
from torch_lms.residency import Ledger, PageId, Tier
from torch_lms.sim.lanes import Lanes, LinkSpeeds
from torch_lms.timeline import Span
from torch_lms.trace import Trace

_UNOBSERVED = nullcontext()


class LaneBackend:
    """Transfers go by lanes, first come, first served (see ``engine.Backend``).

    Args:
        trace: the step; its operations say how long a recomputation takes.
        tiers: the lower tiers, nearest first, and the most bytes of each.
        speeds: of the links.
        is_blocking: whether whoever starts a transfer waits until it has ended, and moves nothing beside operations.

    Attributes:
        now_s: seconds of the virtual clock. The simulator lets it pass while operations run.
        pager: whose pages these are; set once it exists.
        stall_s, copying_s, recompute_s: since ``begin_step``, waiting for transfers, lost to transfers that the
            program's own cores make, and recomputing pages.
        peak_bytes, host_bytes, disk_bytes: since then, the most bytes on the device, workspaces included, and in each
            lower tier.
    """

    pager: Pager

    def __init__(self, trace: Trace, tiers: Mapping[Tier, int], speeds: LinkSpeeds, is_blocking: bool) -> None:
        self.tiers = tiers
        self.now_s = 0.0
        self._trace = trace
        self._lanes = Lanes(speeds)
        self._overlap_penalty = speeds.overlap_penalty
        self._is_blocking = is_blocking
        self._taken = 0
        self.begin_step()

    def begin_step(self) -> None:
        """Start to sum up anew."""
        self.stall_s = 0.0
        self.copying_s = 0.0
        self.recompute_s = 0.0
        self.peak_bytes = 0
        self.host_bytes = 0
        self.disk_bytes = 0

    def note_peak(self, ledger: Ledger, more_bytes: int) -> None:
        """There are the bytes of ``ledger`` now, and ``more_bytes`` on the device that are no pages."""
        self.peak_bytes = max(self.peak_bytes, ledger.device + more_bytes)
        self.host_bytes = max(self.host_bytes, ledger.host)
        self.disk_bytes = max(self.disk_bytes, ledger.disk)

    def forget(self, page: PageId) -> None:
        """``page`` is about to die: nobody waits for its transfer."""
        if page in self._lanes.done_s:
            self._lanes.done_s[page] = self.now_s

    # -- as a backend ------------------------------------------------------------------------------------------------

    @property
    def overlap_penalty(self) -> float:
        """See ``engine.Backend``."""
        return self._overlap_penalty

    def perform(self, action: Action, spent: Spent) -> None:
        """Let ``action`` take its time."""
        if isinstance(action, Discard):
            return  # its copy costs nothing any more
        lanes = self._lanes
        page = self.pager.book[action.page]
        if isinstance(action, StartEvict):
            lanes.evict(page.id, page.nbytes, action.tier, self.now_s)
            self._lose(spent)
        elif isinstance(action, StartFetch):
            assert page.tier is not None
            lanes.fetch(page.id, page.nbytes, page.tier, self.now_s)
            self._lose(spent)
        elif isinstance(action, FinishEvict | FinishFetch):
            self._wait_until(lanes.done_s.pop(page.id))
        elif isinstance(action, Recompute):
            self._recompute(page.id, page.nbytes, spent)
        if self._is_blocking and page.id in lanes.done_s:
            self._wait_until(lanes.done_s[page.id])

    def unobserved(self) -> AbstractContextManager[object]:
        """See ``engine.Backend``."""
        return _UNOBSERVED

    def landed(self) -> Sequence[PageId]:
        """See ``engine.Backend``."""
        return self._lanes.landed(self.now_s)

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

    def take_transfers(self) -> list[Span]:
        """See ``engine.Backend``; those that are under way included."""
        transfers = self._lanes.spans[self._taken :]
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
        self.now_s += lost_s
        spent("copying", copy.nbytes, copy.page)

    def _wait_until(self, then_s: float) -> None:
        if then_s > self.now_s:
            self.stall_s += then_s - self.now_s
            self.now_s = then_s

    def _recompute(self, page: PageId, nbytes: int, spent: Spent) -> None:
        recipe = self.pager.recipes[page]
        seconds = sum(self._trace.ops[op].seconds for op in recipe.ops)
        self.note_peak(self.pager.book.ledger, nbytes + recipe.extra_bytes)
        spent("stall", 0, -1)
        self.recompute_s += seconds
        self.now_s += seconds
        spent("recompute", nbytes, page)
