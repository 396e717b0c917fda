"""Will it fit, and how fast? A step on a machine that need not be at hand."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch_lms.engine import MakePlan
from torch_lms.errors import UsageError
from torch_lms.machine import AUTO, KINDS, PYTHON, Calibration, Efficiency, Machine
from torch_lms.planner import advice
from torch_lms.planner.exchange import Exchange
from torch_lms.planner.feasibility import MemoryBudget
from torch_lms.planner.host_part import NO_HOST_PART, HostPart
from torch_lms.planner.makers import plan_maker
from torch_lms.planner.pace import HostLoad, kernels_of, stock_step
from torch_lms.planner.paging import POLICIES, PagingCost, simulate, without_recomputation
from torch_lms.planner.rivals import RIVALS
from torch_lms.sim import HostWork, PacedStep, SimulatedStep, paced
from torch_lms.timeline import Timeline
from torch_lms.trace import Trace

_HOST_BINDS = 0.05
"""Share of a step, waiting for the host, from which on the step is said to be bound by it: a choice."""

_ROUNDING = 1e-9
"""An overhead below this is none: times are sums of many."""

_PERFECT = Calibration("", dict.fromkeys(KINDS, Efficiency(1.0, 1.0)), 0.0, "the peaks themselves")


@dataclass(frozen=True)
class Forecast:
    """A step on a machine. Bytes and speeds are those of one device, the data rate that of all.

    What stands behind ``advice`` describes the step as it would run; it is None where the step does not fit. Where it
    fits and nothing has to move, that is known: bytes, ``overhead`` and ``link_use`` are 0. But no copy was simulated,
    so speeds of copies and the timeline are None.

    Attributes:
        machine, gpus, policy: as asked for.
        interposer: how LMS comes between PyTorch and its kernels, "native" or "python"; None where it does not.
        demand_bytes: the most that the pages of a step hold at once, without a limit.
        limit_bytes: what pages may occupy, but for those of the operation that runs.
        largest_op_bytes: the working set (W): what the largest operation needs at once.
        binding_op: the name of that operation, which bounds the size.
        fits_without, fits_with: whether the step fits without LMS, and under ``policy``.
        step_s_unlimited: seconds of the step without LMS if the device had memory enough.
        host_wait_unlimited: share of that step in which the device has nothing to do, since the host is at work.
        is_host_bound_unlimited: whether that is more than a twentieth.
        ideal_step_s: seconds of the step at the peaks of the device, without a limit.
        advice: whether it fits, what binds, and what to change.
        host_bytes, disk_bytes: the most that is needed there.
        step_s: seconds of the step.
        step_s_low, step_s_high: the same, less and more by the error of the calibration.
        overhead: the share by which ``step_s`` exceeds ``step_s_unlimited``.
        efficiency: ``ideal_step_s`` as a share of ``step_s``.
        data_rate: items (pixels, voxels, tokens) per second.
        gpu_use: share of the step in which operations run.
        host_work_s: seconds of the host's work in a step: PyTorch's, and LMS's.
        host_wait: share of the step in which the device has nothing to do, since the host is at work. On a machine
            that computes on the host, the share of LMS's own work.
        is_host_bound: whether a device waits for the host for more than a twentieth of the step.
        link_use: share of the step in which the busier direction of the link is busy.
        d2h_bytes, h2d_bytes: moved from the device, and to it.
        d2h_bytes_per_s, h2d_bytes_per_s: reached while that direction is busy; None if it never is.
        recomputed_bytes: bytes of the pages that are recomputed.
        timeline: of the simulated step.
        host_part_s: seconds of the step that the host's own part adds (``HostPart``): ``step_s`` and
            ``step_s_unlimited`` have their share. It is no part of ``host_wait``, nor of the timeline.
    """

    machine: str
    gpus: int
    policy: str
    interposer: str | None
    demand_bytes: int
    limit_bytes: int
    largest_op_bytes: int
    binding_op: str
    fits_without: bool
    fits_with: bool
    step_s_unlimited: float
    host_wait_unlimited: float
    is_host_bound_unlimited: bool
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
    host_work_s: float | None = None
    host_wait: float | None = None
    is_host_bound: bool | None = None
    link_use: float | None = None
    d2h_bytes: int | None = None
    h2d_bytes: int | None = None
    d2h_bytes_per_s: float | None = None
    h2d_bytes_per_s: float | None = None
    recomputed_bytes: int | None = None
    timeline: Timeline | None = None
    host_part_s: float | None = None


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
    interposer: str = AUTO,
    tune: Mapping[str, Any] | None = None,
    samples: float = 1,
    host_part: HostPart = NO_HOST_PART,
    exact: bool = True,
) -> Forecast:
    """What ``machine`` would make of steps like ``trace``.

    Args:
        trace: a step of ``torch_lms.trace_step``, of one device's share.
        machine: where it runs.
        calibration: of the machine's device.
        items: how many pixels, voxels or tokens the step of one device takes.
        policy: one of ``POLICIES``.
        gpus: ranks; each runs such a step, and all exchange their gradients.
        limit: bytes that pages may occupy, but for those of the operation that runs; None: what the device has.
        gradient_bytes: bytes of gradients that ranks exchange.
        interposer: "native" or "python"; "auto" is the faster of those that the machine has.
        tune: tunables of the policy "tflms2", by their names.
        samples: of the step of one device.
        host_part: what the host does beside launching.
        exact: whether operations run in pieces only if these give the same bits.

    Raises:
        UsageError: the machine has not so many GPUs, there is no such policy, tunable or interposer, or the step uses
            no page.
    """
    if policy not in POLICIES:
        raise UsageError(f"policy must be one of {', '.join(POLICIES)}; got {policy!r}")
    if not trace.ops:
        raise UsageError(
            "expected a step on tensors that are large enough to be moved; none of this one is, so it fits as it is. "
            "Give a larger --size or --batch"
        )
    make_plan = plan_maker(policy, tune)
    budget = MemoryBudget.of(
        trace, machine, limit, extra_bytes=gradient_bytes if gpus > 1 else 0, can_split=policy != "none", exact=exact
    )

    # The operations on that machine, without LMS and with it.
    has_lms = policy != "none" and policy not in RIVALS
    chosen = calibration.interposer(interposer)
    if has_lms and budget.trace.in_pieces:
        chosen = PYTHON  # which makes the pieces, and has every operation while tensors are in tiles
    cost = calibration.host_cost(chosen).on(machine.accelerator.launch_s) if has_lms else None
    load = HostLoad(machine, cost)
    is_short = budget.demand > budget.limit
    host = load.while_room_is_short if is_short else load.while_all_fits
    kernels = kernels_of(budget.trace, machine, calibration)
    if policy == "planned-moves":
        kernels = without_recomputation(kernels)
    ideal = stock_step(trace, machine, _PERFECT)
    stock = stock_step(trace, machine, calibration)
    resident = paced(kernels, host)
    exchange = Exchange.of(resident.trace, machine, gpus, gradient_bytes)

    step, misfit = _try(resident, kernels, host, budget, machine, gpus, policy, make_plan)
    stock_s = stock.trace.seconds + exchange.exposed_s
    stock_s += host_part.added_s(stock_s, gpus * samples)
    host_wait = stock.host_wait_s / stock_s
    found = Forecast(
        machine=machine.name,
        gpus=gpus,
        policy=policy,
        interposer=chosen if has_lms else None,
        demand_bytes=budget.demand,
        limit_bytes=budget.limit,
        largest_op_bytes=budget.need.largest_op,
        binding_op=budget.need.binding_op,
        fits_without=budget.fits_without,
        fits_with=not misfit,
        step_s_unlimited=stock_s,
        host_wait_unlimited=host_wait,
        is_host_bound_unlimited=_is_host_bound(host_wait, machine),
        ideal_step_s=ideal.trace.seconds + exchange.exposed_s,
        advice=misfit,
    )
    if misfit:
        return found
    paid = PagingCost.of_resident(resident) if step is None else PagingCost.of(step, calibration)
    host_part_s = host_part.added_s(paid.step_s + exchange.exposed_s, gpus * samples)
    return _as_it_runs(
        found, step, paid, exchange, budget, machine, items=items, error=calibration.error, host_part_s=host_part_s
    )


def _is_host_bound(host_wait: float, machine: Machine) -> bool:
    return machine.link is not None and host_wait > _HOST_BINDS


def _try(
    resident: PacedStep,
    kernels: Trace,
    host: HostWork,
    budget: MemoryBudget,
    machine: Machine,
    gpus: int,
    policy: str,
    make_plan: MakePlan,
) -> tuple[SimulatedStep | None, str]:
    """The step, simulated if pages have to leave; and what to say if it does not fit, "" if it does."""
    if not budget.fits_largest_op:
        return None, advice.largest_op_does_not_fit(budget, machine)
    if policy == "none":
        return None, "" if budget.fits_without else advice.does_not_fit_without_lms(budget, machine)
    if budget.demand <= budget.limit and policy not in RIVALS:
        return None, ""
    work = resident.trace
    step = simulate(work, kernels, budget.limit, machine, gpus, policy, host, make_plan)
    if policy == "planned" and step is not None and not budget.holds(step.peak_bytes):
        # Recomputing takes room, too: without it the step may fit.
        step = simulate(without_recomputation(work), kernels, budget.limit, machine, gpus, policy, host, make_plan)
    if step is None:
        return None, advice.tiers_do_not_hold(budget, machine, gpus, policy)
    if not budget.holds(step.peak_bytes):
        return step, advice.peak_does_not_fit(budget, machine, step.peak_bytes, policy)
    return step, ""


def _as_it_runs(
    found: Forecast,
    step: SimulatedStep | None,
    cost: PagingCost,
    exchange: Exchange,
    budget: MemoryBudget,
    machine: Machine,
    *,
    items: float,
    error: float,
    host_part_s: float,
) -> Forecast:
    """``found``, for a step that fits, with times, bytes, speeds and advice."""
    step_s = cost.step_s + exchange.exposed_s + host_part_s
    overhead = step_s / found.step_s_unlimited - 1
    if abs(overhead) < _ROUNDING:
        overhead = 0.0
    idle_s = cost.stall_s + cost.host_wait_s + exchange.exposed_s + host_part_s
    host_wait = cost.host_wait_s / step_s
    known = replace(
        found,
        host_bytes=cost.host_bytes,
        disk_bytes=cost.disk_bytes,
        step_s=step_s,
        step_s_low=step_s / (1 + error),
        step_s_high=step_s * (1 + error),
        overhead=overhead,
        efficiency=found.ideal_step_s / step_s,
        data_rate=found.gpus * items / step_s,
        gpu_use=1 - idle_s / step_s,
        host_work_s=cost.host_work_s,
        host_wait=host_wait,
        is_host_bound=_is_host_bound(host_wait, machine),
        link_use=max(cost.d2h_s, cost.h2d_s) / step_s,
        d2h_bytes=cost.d2h_bytes,
        h2d_bytes=cost.h2d_bytes,
        d2h_bytes_per_s=cost.d2h_bytes_per_s,
        h2d_bytes_per_s=cost.h2d_bytes_per_s,
        recomputed_bytes=cost.recomputed_bytes,
        timeline=exchange.shown_in(step.timeline) if step is not None else None,
        host_part_s=host_part_s,
    )
    binding = None
    if known.is_host_bound:
        binding = advice.HostBinding(host_wait, found.host_wait_unlimited, found.interposer)
    told = advice.fits(
        budget,
        machine,
        found.policy,
        cost,
        overhead=overhead,
        copies_wait=(cost.stall_s + exchange.exposed_s) / step_s,
        link_use=max(cost.d2h_s, cost.h2d_s) / step_s,
        host=binding,
    )
    return replace(known, advice=told)
