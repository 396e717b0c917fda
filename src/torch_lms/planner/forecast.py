"""Will it fit, and how fast? A step on a machine that need not be at hand."""

from dataclasses import dataclass, replace
from math import inf

from torch_lms.errors import StoreError, UsageError
from torch_lms.machine import KINDS, Calibration, Efficiency, Machine
from torch_lms.planner.plan import make_plan
from torch_lms.planner.rivals import RIVALS, FirstIn, Rival
from torch_lms.planner.walk import Speeds
from torch_lms.policy import Planned, Policy, Reactive
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds, SimulatedStep, Simulator, timed
from torch_lms.timeline import Lane, Span, Timeline
from torch_lms.trace import Trace, demand_curve
from torch_lms.units import format_bytes

POLICIES = ("planned", "planned-moves", "reactive", "none", *RIVALS)
"""What can be asked for; "planned-moves" is planned without recomputation."""

FRAGMENTATION = 0.04
"""Of what a program holds, what the allocator holds in vain: an assumption."""

_HOST_SHARE = 0.9
"""Of the host's memory, what pages may have."""

_STEPS = 3
"""That are simulated; the last one counts."""

_BUCKET_BYTES = 25 << 20
"""Gradients are exchanged by so many at once (DistributedDataParallel's default)."""

_SMALL, _TIGHT = 0.05, 1.75
"""An overhead not worth a word; the limit over the largest operation below which room is short for whatever plan."""

_BUSY = 0.95
"""Share of the step in which the device computes, though it may be the same again."""

_PERFECT = Calibration("", dict.fromkeys(KINDS, Efficiency(1.0, 1.0)), 0.0, "the peaks themselves")

_OURS = Rival(None, keeps_copies=True)


@dataclass(frozen=True)
class Forecast:
    """Of one step on one machine. Bytes and speeds are those of one device, the data rate that of all.

    Attributes:
        machine, gpus, policy: as asked for.
        demand_bytes: the most that a step holds at once, without a limit.
        limit_bytes: what pages may occupy.
        largest_op_bytes: W, what the largest operation needs at once.
        binding_op: its name: it bounds the size.
        fits_without, fits_with: without LMS, and with.
        host_bytes, disk_bytes: needed there.
        step_s: seconds.
        step_s_unlimited: if the device had memory enough.
        overhead: the share by which ``step_s`` exceeds it.
        data_rate: items (pixels, voxels, tokens) per second.
        gpu_use: share of the step in which operations ran.
        link_use: share of the step in which the busier direction of the link was.
        d2h_bytes, h2d_bytes: moved; ``..._per_s`` while the direction was busy.
        recomputed_bytes: of what was made again.
        ideal_step_s: at the peaks of the device, without a limit.
        efficiency: of that, the share that ``step_s`` reaches.
        step_s_low, step_s_high: by the error of the calibration.
        advice: what binds, and what would lift it.
        timeline: of the simulated step; None if nothing had to be moved.
    """

    machine: str
    gpus: int
    policy: str
    demand_bytes: int
    limit_bytes: int
    largest_op_bytes: int
    binding_op: str
    fits_without: bool
    fits_with: bool
    host_bytes: int
    disk_bytes: int
    step_s: float
    step_s_unlimited: float
    overhead: float
    data_rate: float
    gpu_use: float
    link_use: float
    d2h_bytes: int
    h2d_bytes: int
    d2h_bytes_per_s: float
    h2d_bytes_per_s: float
    recomputed_bytes: int
    ideal_step_s: float
    efficiency: float
    step_s_low: float
    step_s_high: float
    advice: str
    timeline: Timeline | None = None


@dataclass(frozen=True)
class Need:
    """What a step asks of a device, in bytes, its workspaces included, and what the allocator holds in vain.

    Attributes:
        stock: without LMS.
        largest_op: with LMS, at least.
        binding_op: the operation that says so.
        workspace: the largest.
    """

    stock: int
    largest_op: int
    binding_op: str
    workspace: int


def need_of(trace: Trace, extra_bytes: int = 0) -> Need:
    """Of ``trace``. ``extra_bytes`` are there all the time and no pages: DistributedDataParallel's buckets, say."""
    alive, largest, name, stock, most = demand_curve(trace).nbytes, 0, "", 0, 0
    stuck = sum(page.nbytes for page in trace.pages if page.unpageable)
    for op, nbytes in zip(trace.ops, alive, strict=True):
        workspace = op.work.workspace_bytes if op.work is not None else 0
        working_set = sum(trace.pages[page].nbytes for page in {*op.pages, *op.creates}) + workspace
        stock, most = max(stock, nbytes + workspace), max(most, workspace)
        if working_set > largest:
            largest, name = working_set, op.name
    return Need(_held(stock + extra_bytes), _held(largest + stuck + extra_bytes), name, most)


def within(trace: Trace, nbytes: int, extra_bytes: int = 0) -> tuple[Trace, Need]:
    """The step as LMS does it where pages may occupy ``nbytes``: large operations in parts if one needs more. And what
    it needs; without LMS it is done whole.
    """
    need = need_of(trace, extra_bytes)
    if trace.cut is None or need.largest_op <= nbytes:
        return trace, need
    return trace.cut, replace(need_of(trace.cut, extra_bytes), stock=need.stock)


def _held(nbytes: int) -> int:
    return int(nbytes * (1 + FRAGMENTATION))


def forecast(
    trace: Trace,
    machine: Machine,
    calibration: Calibration,
    *,
    items: float,
    policy: str = "planned",
    gpus: int = 1,
    limit: int | None = None,
    gradient_bytes: int = 0,
) -> Forecast:
    """What ``machine`` would make of steps like ``trace``.

    Args:
        trace: of ``torch_lms.trace_step``, of one device's share.
        machine: where they run.
        calibration: of its device.
        items: of data in the step of one device.
        policy: one of ``POLICIES``.
        gpus: ranks; each runs such a step, and all exchange their gradients.
        limit: bytes that pages may occupy; default: what the device has.
        gradient_bytes: that ranks exchange.

    Raises:
        UsageError: the machine has not so many GPUs, or there is no such policy.
    """
    if policy not in POLICIES:
        raise UsageError(f"policy must be one of {', '.join(POLICIES)}; got {policy!r}")
    buckets = gradient_bytes if gpus > 1 else 0
    need, usable = need_of(trace, buckets), machine.accelerator.usable_bytes
    room = int(usable / (1 + FRAGMENTATION)) - need.workspace - buckets
    limit, demand = room if limit is None else min(limit, room), demand_curve(trace).demand_bytes
    perfect_s = timed(trace, machine.accelerator, _PERFECT).seconds
    if policy != "none":
        trace, need = within(trace, limit, buckets)
    stock = timed(trace, machine.accelerator, calibration)
    work = stock if policy in ("none", *RIVALS) else _paged(stock, machine, calibration)
    if policy == "planned-moves":
        work = _unrepeatable(work)
    exchange = _Exchange.of(work, machine, gpus, gradient_bytes)
    step, failure = None, ""
    if need.largest_op > usable or limit <= 0:
        failure = "operation"
    elif policy == "none":
        failure = "" if need.stock <= usable else "none"
    elif demand > limit or policy in RIVALS:
        step = _simulated(work, limit, machine, gpus, policy)
        if policy == "planned" and step is not None and _held(step.peak_bytes + buckets) > usable:
            step = _simulated(_unrepeatable(work), limit, machine, gpus, policy)  # to make pages again takes room, too
        if step is None:
            failure = "host"
        elif _held(step.peak_bytes + buckets) > usable:
            failure = "operation"
    moved = _Moved.by(step)
    paging_s = work.seconds - stock.seconds if step is not None else 0.0
    renewed_s = calibration.paging_byte_s * (moved.in_bytes + moved.recomputed_bytes)
    unlimited_s = stock.seconds + exchange.exposed_s
    step_s = unlimited_s + moved.more_s + paging_s + renewed_s
    found = Forecast(
        machine=machine.name,
        gpus=gpus,
        policy=policy,
        demand_bytes=demand,
        limit_bytes=limit,
        largest_op_bytes=need.largest_op,
        binding_op=need.binding_op,
        fits_without=need.stock <= usable,
        fits_with=not failure,
        host_bytes=moved.host_bytes,
        disk_bytes=moved.disk_bytes,
        step_s=step_s,
        step_s_unlimited=unlimited_s,
        overhead=step_s / unlimited_s - 1,
        data_rate=gpus * items / step_s,
        gpu_use=1 - (moved.stall_s + paging_s + exchange.exposed_s) / step_s,
        link_use=max(moved.out_s, moved.in_s) / step_s,
        d2h_bytes=moved.out_bytes,
        h2d_bytes=moved.in_bytes,
        d2h_bytes_per_s=moved.out_bytes / moved.out_s if moved.out_s else 0.0,
        h2d_bytes_per_s=moved.in_bytes / moved.in_s if moved.in_s else 0.0,
        recomputed_bytes=moved.recomputed_bytes,
        ideal_step_s=perfect_s + exchange.exposed_s,
        efficiency=(perfect_s + exchange.exposed_s) / step_s,
        step_s_low=step_s / (1 + calibration.error),
        step_s_high=step_s * (1 + calibration.error),
        advice="",
        timeline=exchange.within(step.timeline) if step is not None else None,
    )
    return replace(found, advice=_advice(found, failure, usable))


def _paged(stock: Trace, machine: Machine, calibration: Calibration) -> Trace:
    """The same step with what LMS's own Python takes: in turns with operations where a processor does both, else beside
    them, so that it counts only where the program is no longer ahead of the device.
    """
    launches = sum(op.work.launches for op in stock.ops if op.work is not None)
    python_s = launches * calibration.paging_op_s
    if machine.link is None:
        longer = (stock.seconds + python_s) / stock.seconds
    else:
        longer = max(1.0, (launches * machine.accelerator.launch_s + python_s) / stock.seconds) if python_s else 1.0
    return Trace(stock.pages, tuple(op._replace(seconds=longer * op.seconds) for op in stock.ops))


def _unrepeatable(work: Trace) -> Trace:
    """The same step, of which nothing may be made again."""
    return Trace(work.pages, tuple(op._replace(is_repeatable=False) for op in work.ops))


@dataclass(frozen=True)
class _Moved:
    """Of a simulated step, what pages cost; all 0 where none had to leave."""

    more_s: float = 0.0
    stall_s: float = 0.0
    out_s: float = 0.0
    in_s: float = 0.0
    out_bytes: int = 0
    in_bytes: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    recomputed_bytes: int = 0

    @classmethod
    def by(cls, step: SimulatedStep | None) -> "_Moved":
        if step is None:
            return cls()
        return cls(
            more_s=step.stall_s + step.copying_s + step.recompute_s,
            stall_s=step.stall_s,
            out_s=_busy_s(step.timeline, Lane.OUT),
            in_s=_busy_s(step.timeline, Lane.IN),
            out_bytes=step.out_bytes,
            in_bytes=step.in_bytes,
            host_bytes=step.host_bytes,
            disk_bytes=step.disk_bytes,
            recomputed_bytes=step.recomputed_bytes,
        )


def _busy_s(timeline: Timeline, lane: Lane) -> float:
    return sum(span.end_s - span.start_s for span in timeline.spans if span.lane is lane)


def _simulated(work: Trace, limit: int, machine: Machine, gpus: int, policy: str) -> SimulatedStep | None:
    """A step under ``policy``; None if the lower tiers cannot hold what must leave."""
    tiers, links = _tiers(machine, gpus)
    rival = RIVALS.get(policy)
    chooser: Policy
    if rival is not None:
        plan = rival.plan(work, limit) if rival.plan is not None else None
        chooser = Planned() if plan is not None else FirstIn()
        limit = 0 if rival.grows else limit
    elif policy == "reactive":
        rival, plan, chooser = _OURS, None, Reactive()
    else:
        rival, chooser = _OURS, Planned()
        plan = make_plan(work, limit, {}, Speeds(links.out, links.back, links.lost))
    simulator = Simulator(
        work,
        limit,
        tiers,
        links,
        chooser,
        plan,
        is_blocking=rival.is_blocking,
        keeps_copies=rival.keeps_copies,
        grows=rival.grows,
    )
    try:
        return [simulator.step() for _ in range(_STEPS)][-1]
    except StoreError:
        return None


def below_bytes(machine: Machine, gpus: int) -> int:
    """What the lower tiers hold for each of ``gpus`` ranks."""
    return sum(_tiers(machine, gpus)[0].values())


def _tiers(machine: Machine, gpus: int) -> tuple[dict[Tier, int], LinkSpeeds]:
    """The lower tiers, and what the slowest rank has of the links while ``gpus`` copy at once: all wait for it."""
    tiers: dict[Tier, int] = {}
    write = read = inf
    if machine.disk is not None:
        write, read = machine.disk.write_bytes_per_s / gpus, machine.disk.read_bytes_per_s / gpus
        tiers[Tier.DISK] = machine.disk.nbytes // gpus
    if machine.link is None:
        return tiers, LinkSpeeds(write, read, write, read, is_host_memory=True, lost=1.0)
    link = min(machine.links(gpus), key=lambda link: link.both_bytes_per_s)
    out, back = link.to_host_bytes_per_s, link.to_device_bytes_per_s
    speeds = LinkSpeeds(out, back, write, read, link.both_bytes_per_s, link.latency_s)
    return {Tier.HOST: int(_HOST_SHARE * machine.host_bytes) // gpus, **tiers}, speeds


@dataclass(frozen=True)
class _Exchange:
    """Of gradients, between the ranks.

    Attributes:
        nbytes: that each rank has of them.
        whole_s: how long it takes: a ring passes 2 (n - 1) / n of them by each rank.
        exposed_s: what backward does not hide: it begins when the first bucket is full; the last is exchanged when all
            is done.
    """

    nbytes: int = 0
    whole_s: float = 0.0
    exposed_s: float = 0.0

    @classmethod
    def of(cls, work: Trace, machine: Machine, gpus: int, gradient_bytes: int) -> "_Exchange":
        if gpus == 1:
            return cls()
        byte_s = 2 * (gpus - 1) / gpus / machine.ring_bytes_per_s(gpus)
        whole_s, last_s = byte_s * gradient_bytes, byte_s * min(gradient_bytes, _BUCKET_BYTES)
        backward_s = sum(op.seconds for op in work.ops if "backward" in op.name)
        return cls(gradient_bytes, whole_s, max(last_s, whole_s - backward_s))

    def within(self, timeline: Timeline) -> Timeline:
        """The step with it."""
        if not self.nbytes:
            return timeline
        done_s = max(span.end_s for span in timeline.spans if span.lane is Lane.COMPUTE)
        end_s = done_s + self.exposed_s
        waits = Span(Lane.COMPUTE, "stall", done_s, end_s)
        exchanged = Span(Lane.COLLECTIVE, "all-reduce", end_s - self.whole_s, end_s, self.nbytes)
        return replace(timeline, spans=(*timeline.spans, waits, exchanged))


def _advice(found: Forecast, failure: str, usable: int) -> str:
    """One sentence: what binds, and what would lift it."""
    share = found.limit_bytes / found.largest_op_bytes
    if failure == "operation":
        return (
            f"Does not fit: {found.binding_op} alone needs {format_bytes(found.largest_op_bytes)} of the device's "
            f"{format_bytes(usable)}; a smaller size or batch, or a device with more memory, would lift that."
        )
    if failure == "host":
        return (
            f"Does not fit: {format_bytes(max(0, found.demand_bytes - found.limit_bytes))} must leave each device, and "
            f"the tiers below cannot take them; more host memory or a disk would lift that."
        )
    if failure:
        return f"Does not fit without LMS: a step holds {format_bytes(found.demand_bytes)}; with LMS it may."
    if found.fits_without:
        return f"Fits without LMS: a step holds {format_bytes(found.demand_bytes)} of {format_bytes(usable)}."
    if found.overhead < _SMALL:
        return f"Fits with LMS, at {found.overhead:.1%} of time: nothing binds that is worth lifting."
    if share < _TIGHT:
        return (
            f"Fits with LMS, at {found.overhead:.0%} of time: the largest operation, {found.binding_op}, leaves little "
            f"room (limit / W = {share:.1f}); a smaller batch, or more device memory, would lift that."
        )
    if found.gpu_use > _BUSY:
        return (
            f"Fits with LMS, at {found.overhead:.0%} of time, in which {format_bytes(found.recomputed_bytes)} are made "
            f"again for want of memory; more device memory, or a faster link, would lift that."
        )
    return (
        f"Fits with LMS, at {found.overhead:.0%} of time: the link to the host binds (busy {found.link_use:.0%} of the "
        f"step); a faster link, or more device memory, would lift that."
    )
