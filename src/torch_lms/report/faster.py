"""What would make a step faster: it is planned and simulated anew, each time with one thing changed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch_lms.errors import StoreError
from torch_lms.planner import make_plan, planned_with
from torch_lms.policy import Planned
from torch_lms.report.fused import with_fused_optimizer
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds, Simulator
from torch_lms.trace import Trace, TracedPage, demand_curve

_STEPS = 3
"""How many are simulated. The last counts: the first begins with all pages on the device."""

MAX_OPS = 1500
"""Steps of more operations are not simulated: planning each change would take minutes."""


class Change(NamedTuple):
    """A step with something changed.

    Attributes:
        what: was changed.
        step_s: seconds of it; None if it does not fit.
        wait_s: of these, waiting for copies, or lost to those that the program's own cores make.
        moved_bytes: evicted and fetched.
        recomputed_bytes: recomputed.
    """

    what: str
    step_s: float | None
    wait_s: float = 0.0
    moved_bytes: int = 0
    recomputed_bytes: int = 0


@dataclass(frozen=True)
class _Setup:
    trace: Trace
    limit: int
    link: LinkSpeeds
    tiers: Mapping[Tier, int]
    times: int = 1
    """How many such steps do the work of one."""

    def simulated(self, what: str) -> Change:
        plan = make_plan(self.trace, self.limit, {}, planned_with(self.link, self.tiers))
        simulator = Simulator(self.trace, self.limit, self.tiers, self.link, Planned(), plan)
        try:
            step = [simulator.step() for _ in range(_STEPS)][-1]
        except StoreError:
            return Change(what, None)
        return Change(
            what,
            self.times * step.seconds,
            self.times * (step.stall_s + step.copying_s),
            self.times * (step.evicted_bytes + step.fetched_bytes),
            self.times * step.recomputed_bytes,
        )


def changes(trace: Trace, limit: int, link: LinkSpeeds, tiers: Mapping[Tier, int]) -> Iterator[Change]:
    """The step as it is, by plan, and with one thing changed each. All of it is simulated, so all can be compared.

    Args:
        trace: the step, with its seconds.
        limit: bytes that its pages may occupy.
        link: to the lower tiers.
        tiers: the bytes of each.
    """
    setup = _Setup(trace, limit, link, tiers)
    where = "disk" if link.is_host_memory else "link"
    yield setup.simulated("as it is")
    yield replace(setup, link=_faster(link, 2)).simulated(f"a {where} twice as fast")
    yield replace(setup, link=_faster(link, 4)).simulated(f"a {where} four times as fast")
    yield replace(setup, limit=limit * 5 // 4).simulated("a limit a quarter higher")
    yield replace(setup, limit=limit * 3 // 2).simulated("a limit half as high again")
    fused = with_fused_optimizer(trace, limit)
    if fused is not None:
        yield replace(setup, trace=fused).simulated("fused=True for the optimizer")
    yield replace(setup, trace=with_half_the_batch(trace), times=2).simulated("half the batch, two steps for one")
    if demand_curve(trace).demand_bytes > limit:
        yield Change("memory enough for all", trace.seconds)


def _faster(link: LinkSpeeds, factor: int) -> LinkSpeeds:
    return replace(
        link,
        d2h=link.d2h * factor,
        h2d=link.h2d * factor,
        disk_write=link.disk_write * factor,
        disk_read=link.disk_read * factor,
        both=link.both * factor,
    )


def with_half_the_batch(trace: Trace) -> Trace:
    """The step with half of each sample-sized page and of the seconds: a smaller working set (W).

    Pages that are there before each step and after it, or that are as large as one of these, are taken for weights,
    their gradients and the optimizer's: they stay as they are.
    """
    kept = {page.nbytes for page in trace.pages if page.born < 0 and page.successor >= 0}
    pages = tuple(page if page.nbytes in kept else page._replace(nbytes=page.nbytes // 2) for page in trace.pages)
    ops = tuple(op._replace(seconds=op.seconds / 2, new_bytes=_new_bytes(op.creates, pages)) for op in trace.ops)
    return Trace(pages, ops)


def _new_bytes(creates: tuple[int, ...], pages: tuple[TracedPage, ...]) -> int:
    return sum(pages[page].nbytes for page in creates)
