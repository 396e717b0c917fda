"""Will it fit, and how fast? A step on a machine that need not be at hand."""

from dataclasses import dataclass, replace
from math import inf

from torch_lms.engine import Speeds
from torch_lms.errors import StoreError, UsageError
from torch_lms.machine import KINDS, Calibration, Efficiency, Machine
from torch_lms.planner.plan import make_plan
from torch_lms.planner.rivals import RIVALS, FirstIn, Rival
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

    What stands behind ``advice`` is of the step as it would run, and None where it does not fit: it has none.
    Where it fits and nothing has to move, that is known: bytes, ``overhead`` and ``link_use`` are 0. But no copy was
    simulated, so speeds of copies and the timeline are None.

    Attributes:
        machine, gpus, policy: as asked for.
        demand_bytes: the most that a step holds at once, without a limit.
        limit_bytes: what pages may occupy, but for those of the operation that runs.
        largest_op_bytes: W, what the largest operation needs at once.
        binding_op: its name: it bounds the size.
        fits_without, fits_with: without LMS, and with.
        step_s_unlimited: seconds, if the device had memory enough.
        ideal_step_s: at the peaks of the device, without a limit.
        advice: what binds, and what would lift it.
        host_bytes, disk_bytes: needed there.
        step_s: seconds.
        step_s_low, step_s_high: by the error of the calibration.
        overhead: the share by which ``step_s`` exceeds ``step_s_unlimited``.
        efficiency: of ``ideal_step_s``, the share that ``step_s`` reaches.
        data_rate: items (pixels, voxels, tokens) per second.
        gpu_use: share of the step in which operations ran.
        link_use: share of the step in which the busier direction of the link was.
        d2h_bytes, h2d_bytes: moved; ``..._per_s`` while the direction was busy, None if it never was.
        recomputed_bytes: of what was made again.
        timeline: of the simulated step.
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
    step_s_unlimited: float
    ideal_step_s: float
    advice: str
    host_bytes: int | None = None
    disk_bytes: int | None = None
    step_s: float | None = None
    step_s_low: float | None = None
    step_s_high: float | None = None
    overhead: float | None = None
    efficiency: float | None = None
    data_rate: float | None = None
    gpu_use: float | None = None
    link_use: float | None = None
    d2h_bytes: int | None = None
    h2d_bytes: int | None = None
    d2h_bytes_per_s: float | None = None
    h2d_bytes_per_s: float | None = None
    recomputed_bytes: int | None = None
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


@dataclass(frozen=True)
class _Room:
    """What a step asks of a device, and what it gets.

    Attributes:
        trace: the step as it is done there: large operations in parts, if they must be.
        need: of it.
        demand: the most bytes of pages at once, without a limit.
        limit: what pages may occupy, but for those of the operation that runs.
        usable: what the device has.
        others: bytes that are there all the time and no pages.
    """

    trace: Trace
    need: Need
    demand: int
    limit: int
    usable: int
    others: int

    @classmethod
    def of(cls, trace: Trace, machine: Machine, limit: int | None, others: int, in_parts: bool = True) -> "_Room":
        """``limit``: as asked for; by default all that the device has beside ``others`` and workspaces."""
        need, usable = need_of(trace, others), machine.accelerator.usable_bytes
        demand = demand_curve(trace).demand_bytes
        most = max(0, int(usable / (1 + FRAGMENTATION)) - need.workspace - others)
        if need.stock <= usable:
            most = max(most, demand)  # the largest workspace need not be where most is alive
        limit = most if limit is None else min(limit, most)
        if in_parts:
            trace, need = within(trace, limit, others)
        return cls(trace, need, demand, limit, usable, others)

    @property
    def fits_stock(self) -> bool:
        """Without LMS."""
        return self.need.stock <= self.usable

    @property
    def has_operation(self) -> bool:
        """Whether the largest operation fits. The limit does not bound it: it gives way to the operation that runs."""
        return self.need.largest_op <= self.usable

    def holds(self, step: SimulatedStep) -> bool:
        """What the step held at most."""
        return _held(step.peak_bytes + self.others) <= self.usable


def may_fit(
    trace: Trace,
    machine: Machine,
    *,
    policy: str = "planned",
    gpus: int = 1,
    limit: int | None = None,
    gradient_bytes: int = 0,
) -> bool:
    """What can be told without simulating it: whether the device has room for the largest operation, and the tiers
    below it for the rest; under "none", whether it has room for all.

    Arguments are those of ``forecast``, which may find that it does not fit all the same.
    """
    room = _Room.of(trace, machine, limit, gradient_bytes if gpus > 1 else 0)
    if policy == "none":
        return room.fits_stock
    return room.has_operation and room.demand - room.limit <= sum(_tiers(machine, gpus)[0].values())


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
        limit: bytes that pages may occupy, but for those of the operation that runs; default: what the device has.
        gradient_bytes: that ranks exchange.

    Raises:
        UsageError: the machine has not so many GPUs, or there is no such policy.
    """
    if policy not in POLICIES:
        raise UsageError(f"policy must be one of {', '.join(POLICIES)}; got {policy!r}")
    room = _Room.of(trace, machine, limit, gradient_bytes if gpus > 1 else 0, in_parts=policy != "none")
    stock = timed(room.trace, machine.accelerator, calibration)
    work = stock if policy in ("none", *RIVALS) else _paged(stock, machine, calibration)
    if policy == "planned-moves":
        work = _unrepeatable(work)
    exchange = _Exchange.of(work, machine, gpus, gradient_bytes)
    step, failure = _tried(work, room, machine, gpus, policy)
    found = Forecast(
        machine=machine.name,
        gpus=gpus,
        policy=policy,
        demand_bytes=room.demand,
        limit_bytes=room.limit,
        largest_op_bytes=room.need.largest_op,
        binding_op=room.need.binding_op,
        fits_without=room.fits_stock,
        fits_with=not failure,
        step_s_unlimited=stock.seconds + exchange.exposed_s,
        ideal_step_s=timed(trace, machine.accelerator, _PERFECT).seconds + exchange.exposed_s,
        advice=failure,
    )
    if failure:
        return found
    moved = _Moved.by(step)
    paging_s = work.seconds - stock.seconds if step is not None else 0.0
    renewed_s = calibration.paging_byte_s * (moved.in_bytes + moved.recomputed_bytes)
    step_s = found.step_s_unlimited + moved.more_s + paging_s + renewed_s
    overhead = step_s / found.step_s_unlimited - 1
    gpu_use = 1 - (moved.stall_s + paging_s + exchange.exposed_s) / step_s
    link_use = max(moved.out_s, moved.in_s) / step_s
    return replace(
        found,
        advice=_advice(found, moved, overhead, gpu_use, link_use, room.usable),
        host_bytes=moved.host_bytes,
        disk_bytes=moved.disk_bytes,
        step_s=step_s,
        step_s_low=step_s / (1 + calibration.error),
        step_s_high=step_s * (1 + calibration.error),
        overhead=overhead,
        efficiency=found.ideal_step_s / step_s,
        data_rate=gpus * items / step_s,
        gpu_use=gpu_use,
        link_use=link_use,
        d2h_bytes=moved.out_bytes,
        h2d_bytes=moved.in_bytes,
        d2h_bytes_per_s=moved.out_bytes / moved.out_s if moved.out_s else None,
        h2d_bytes_per_s=moved.in_bytes / moved.in_s if moved.in_s else None,
        recomputed_bytes=moved.recomputed_bytes,
        timeline=exchange.within(step.timeline) if step is not None else None,
    )


def _tried(work: Trace, room: _Room, machine: Machine, gpus: int, policy: str) -> tuple[SimulatedStep | None, str]:
    """The step, simulated if pages have to leave; and why it does not fit, "" if it does."""
    need, usable = room.need, format_bytes(room.usable)
    if not room.has_operation:
        return None, (
            f"Does not fit: {need.binding_op} alone needs {format_bytes(need.largest_op)} of the device's {usable}; a "
            f"smaller size or batch, or a device with more memory, would lift that."
        )
    if policy == "none":
        told = f"Does not fit without LMS: a step holds {format_bytes(room.demand)}; with LMS it may."
        return None, "" if room.fits_stock else told
    if room.demand <= room.limit and policy not in RIVALS:
        return None, ""
    step = _simulated(work, room.limit, machine, gpus, policy)
    if policy == "planned" and step is not None and not room.holds(step):
        step = _simulated(_unrepeatable(work), room.limit, machine, gpus, policy)  # to make pages again takes room, too
    if step is None:
        return None, (
            f"Does not fit: {format_bytes(max(0, room.demand - room.limit))} must leave each device, and the tiers "
            f"below cannot take them; more host memory or a disk would lift that."
        )
    if not room.holds(step):
        return step, (
            f"Does not fit: with {policy} a step holds {format_bytes(_held(step.peak_bytes + room.others))} of the "
            f"device's {usable} at once; a smaller size or batch, or a device with more memory, would lift that."
        )
    return step, ""


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


def _advice(found: Forecast, moved: _Moved, overhead: float, gpu_use: float, link_use: float, usable: int) -> str:
    """One sentence on a step that fits: what binds, and what would lift it."""
    share = found.limit_bytes / found.largest_op_bytes if found.largest_op_bytes else inf
    if found.fits_without:
        return f"Fits without LMS: a step holds {format_bytes(found.demand_bytes)} of {format_bytes(usable)}."
    if overhead < _SMALL:
        return f"Fits with LMS, at {overhead:.1%} of time: nothing binds that is worth lifting."
    if share < _TIGHT:
        return (
            f"Fits with LMS, at {overhead:.0%} of time: the largest operation, {found.binding_op}, leaves little "
            f"room (limit / W = {share:.1f}); a smaller batch, or more device memory, would lift that."
        )
    if gpu_use > _BUSY:
        return (
            f"Fits with LMS, at {overhead:.0%} of time, in which {format_bytes(moved.recomputed_bytes)} are made "
            f"again for want of memory; more device memory, or a faster link, would lift that."
        )
    return (
        f"Fits with LMS, at {overhead:.0%} of time: the link to the host binds (busy {link_use:.0%} of the step); a "
        f"faster link, or more device memory, would lift that."
    )
