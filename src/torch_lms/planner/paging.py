"""What paging costs a step on a machine that need not be at hand: the step is simulated under a policy."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from torch_lms.engine import NATIVE_REPEAT_S, MakePlan, Speeds
from torch_lms.errors import StoreError
from torch_lms.machine import Calibration, Machine
from torch_lms.planner.feasibility import lower_tiers
from torch_lms.planner.makers import PLANNED
from torch_lms.planner.rivals import RIVALS, FirstIn, Rival
from torch_lms.policy import Plan, Planned, Policy, Reactive
from torch_lms.residency import Tier
from torch_lms.sim import NO_WORK, HostWork, LinkSpeeds, PacedStep, SimulatedStep, Simulator
from torch_lms.timeline import Lane, Timeline
from torch_lms.trace import Trace

POLICIES = (*PLANNED, "planned-moves", "reactive", "none", *RIVALS)
"""What can be asked for; "planned-moves" is planned without recomputation."""

_STEPS = 3
"""How many steps are simulated. The last one counts: the first begins with every page on the device."""

_NO_DISK = 1.0
"""Bytes per second."""

_OURS = Rival(None, keeps_copies=True)
"""How LMS itself moves pages, in the terms of its rivals."""


def without_recomputation(work: Trace) -> Trace:
    """The same step, of which nothing may be recomputed."""
    return Trace(work.pages, tuple(op._replace(is_repeatable=False) for op in work.ops))


def simulate(
    work: Trace,
    kernels: Trace,
    limit: int,
    machine: Machine,
    gpus: int,
    policy: str,
    host: HostWork,
    make_plan: MakePlan,
) -> SimulatedStep | None:
    """A step under ``policy``; None if the lower tiers cannot hold what is evicted.

    Args:
        work: the step as it is recorded where no page moves: of this a plan is made.
        kernels: the same, with the seconds of its kernels alone.
        limit: bytes that pages may occupy.
        machine: where it runs.
        gpus: ranks that take such steps at once, and share the machine.
        policy: one of ``POLICIES``, but for "none".
        host: what the host does.
        make_plan: makes the plan, if the policy follows one of ours.
    """
    tiers, links = lower_tiers(machine, gpus)
    way = RIVALS.get(policy, _OURS)
    plan: Plan | None = None
    chooser: Policy
    if way.plan is not None:
        plan = way.plan(work, limit)
        chooser = Planned()
    elif policy in RIVALS:
        chooser = FirstIn()
    elif policy == "reactive":
        chooser = Reactive()
    else:
        plan = make_plan(work, limit, {}, planned_with(links, tiers, host))
        chooser = Planned()
    simulator = Simulator(
        kernels,
        0 if way.grows else limit,
        tiers,
        links,
        chooser,
        plan,
        is_blocking=way.is_blocking,
        keeps_copies=way.keeps_copies,
        grows=way.grows,
        host=host,
    )
    try:
        for _ in range(_STEPS - 1):
            simulator.step()
        return simulator.step()
    except StoreError:
        return None


def planned_with(links: LinkSpeeds, tiers: Mapping[Tier, int], host: HostWork = NO_WORK) -> Speeds:
    """The speeds that a plan is made for, on a machine with such links and lower tiers, whose host does that."""
    if links.is_host_memory:
        return Speeds(links.disk_write, links.disk_read, links.overlap_penalty, repeat_s=NATIVE_REPEAT_S)
    is_disk_there = Tier.DISK in tiers  # else what finds no room in host memory goes nowhere
    write, read = (links.disk_write, links.disk_read) if is_disk_there else (_NO_DISK, _NO_DISK)
    return Speeds(
        links.d2h,
        links.h2d,
        links.overlap_penalty,
        tiers.get(Tier.HOST, inf),
        write,
        read,
        launch_s=host.launch_s + host.op_s,
        action_s=host.action_s,
    )


@dataclass(frozen=True)
class PagingCost:
    """What pages and LMS cost a step. What pages cost is 0 where none had to leave.

    Attributes:
        step_s: seconds of the step, with all of this.
        stall_s: of these, the waits for copies.
        host_wait_s: of these, the device had nothing to do, since the host was at work.
        host_work_s: of the host's work, for PyTorch and for LMS.
        renewed_s: by which the system makes it longer, giving memory anew to pages that were fetched or recomputed.
        d2h_s, h2d_s: seconds in which each direction of the link was busy.
        d2h_bytes, h2d_bytes: moved.
        host_bytes, disk_bytes: the most that was there at once.
        recompute_s: of ``step_s``, recomputing pages.
        recomputed_bytes: bytes of the pages that were recomputed.
    """

    step_s: float = 0.0
    stall_s: float = 0.0
    host_wait_s: float = 0.0
    host_work_s: float = 0.0
    renewed_s: float = 0.0
    d2h_s: float = 0.0
    h2d_s: float = 0.0
    d2h_bytes: int = 0
    h2d_bytes: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    recompute_s: float = 0.0
    recomputed_bytes: int = 0

    @classmethod
    def of_resident(cls, step: PacedStep) -> "PagingCost":
        """The costs of a step in which no page has to leave."""
        return cls(step_s=step.trace.seconds, host_wait_s=step.host_wait_s, host_work_s=step.host_work_s)

    @classmethod
    def of(cls, step: SimulatedStep, calibration: Calibration) -> "PagingCost":
        """The costs of ``step``, on a processor of ``calibration``."""
        renewed_s = calibration.paging_byte_s * (step.fetched_bytes + step.recomputed_bytes)
        return cls(
            step_s=step.seconds + renewed_s,
            stall_s=step.stall_s,
            host_wait_s=step.host_wait_s,
            host_work_s=step.host_work_s,
            renewed_s=renewed_s,
            d2h_s=_busy_s(step.timeline, Lane.D2H),
            h2d_s=_busy_s(step.timeline, Lane.H2D),
            d2h_bytes=step.evicted_bytes,
            h2d_bytes=step.fetched_bytes,
            host_bytes=step.host_bytes,
            disk_bytes=step.disk_bytes,
            recompute_s=step.recompute_s,
            recomputed_bytes=step.recomputed_bytes,
        )

    @property
    def d2h_bytes_per_s(self) -> float | None:
        """What was reached while that direction was busy; None if it never was."""
        return self.d2h_bytes / self.d2h_s if self.d2h_s else None

    @property
    def h2d_bytes_per_s(self) -> float | None:
        """The same for the other direction."""
        return self.h2d_bytes / self.h2d_s if self.h2d_s else None


def _busy_s(timeline: Timeline, lane: Lane) -> float:
    return sum(span.end_s - span.start_s for span in timeline.spans if span.lane is lane)
