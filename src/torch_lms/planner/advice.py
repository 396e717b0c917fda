"""What a forecast says in words: whether a step fits, what binds, and what to change or to buy."""

from typing import NamedTuple

from torch_lms.machine import NATIVE, PYTHON, Machine
from torch_lms.planner.feasibility import MemoryBudget, lower_tiers, with_fragmentation
from torch_lms.planner.paging import PagingCost
from torch_lms.residency import Tier
from torch_lms.units import format_bytes

_NONE = 0.0005
"""An overhead below this is printed as 0.0%."""

_SMALL = 0.05
"""An overhead below this is not worth a change. How this and ``_BUSY`` were chosen is not recorded."""

_TIGHT = 1.75
"""Limit over working set (W) below which the largest operation is said to bind.

From the simulations of the planning study: over PCIe 3 overheads reached 19 % where it was between 1.75 and 3, 29 %
between 1.3 and 1.75, and 143 % between 1 and 1.3.
"""

_BUSY = 0.95
"""Share of the step in which the device does not wait for copies. Above it the link is not said to bind: part of what
the device computes may be recomputation."""


def largest_op_does_not_fit(budget: MemoryBudget, machine: Machine) -> str:
    """For a step whose largest operation exceeds the device."""
    need = budget.need
    return (
        f"Does not fit: {need.binding_op} alone needs {format_bytes(need.largest_op)} of the device's "
        f"{format_bytes(budget.usable)} for its working set (W). Device memory binds: choose a device with at least "
        f"{_memory(machine, need.largest_op)}, or a smaller size or batch."
    )


def does_not_fit_without_lms(budget: MemoryBudget, machine: Machine) -> str:
    """For a step that was asked for without LMS, and does not fit so."""
    return (
        f"Does not fit without LMS: the step needs {format_bytes(budget.need.stock)} of the device's "
        f"{format_bytes(budget.usable)} at once. With LMS it may fit. Without, choose a device with at least "
        f"{_memory(machine, budget.need.stock)}, or a smaller size or batch."
    )


def tiers_do_not_hold(budget: MemoryBudget, machine: Machine, gpus: int, policy: str) -> str:
    """For a step that evicts more than the tiers below the device hold."""
    told = [
        "Does not fit: the step runs out of room below the device.",
        f"Each device has {_room_below(machine, gpus)}.",
    ]
    excess = budget.demand - budget.limit
    larger = "a disk" if machine.link is None else "host memory or a disk"
    if excess > 0:
        told.append(
            f"At least {format_bytes(excess)} must be evicted from it: add {larger}, or choose a smaller size or batch."
        )
    else:
        told.append(f"Add {larger}, or choose another policy than {policy}.")
    return " ".join(told)


def peak_does_not_fit(budget: MemoryBudget, machine: Machine, peak_bytes: int, policy: str) -> str:
    """For a step that under ``policy`` holds more than the device has."""
    held = (
        f"Does not fit: with the policy {policy} the step holds {format_bytes(budget.held_bytes(peak_bytes))} of the "
        f"device's {format_bytes(budget.usable)} at once."
    )
    if budget.fits_without:
        return f"{held} It fits without LMS: choose another policy."
    return (
        f"{held} Device memory binds: choose a smaller size or batch, or a device with more memory. With "
        f"{_memory(machine, budget.need.stock)} the step fits without LMS."
    )


class HostBinding(NamedTuple):
    """A step is bound by the host.

    Attributes:
        wait: share of the step in which the device waits for the host.
        wait_unlimited: the same of a step without LMS on a device with memory enough.
        interposer: how LMS comes between PyTorch and its kernels; None where it does not.
    """

    wait: float
    wait_unlimited: float
    interposer: str | None


def fits(
    budget: MemoryBudget,
    machine: Machine,
    policy: str,
    cost: PagingCost,
    *,
    overhead: float,
    copies_wait: float,
    link_use: float,
    host: HostBinding | None = None,
) -> str:
    """For a step that fits.

    Args:
        budget: of its memory.
        machine: where it runs.
        policy: under which it runs.
        cost: of paging.
        overhead: share by which it takes longer than without LMS on a device with memory enough.
        copies_wait: share of it in which the device waits for copies, or for other ranks.
        link_use: share of it in which the busier direction of the link is busy.
        host: given if the host binds.
    """
    parts = [_fits(budget, policy, overhead, is_slowed_by_host=host is not None)]
    if overhead >= _SMALL and not budget.fits_without and not (host and cost.host_wait_s > cost.stall_s):
        parts.append(_memory_or_link_binds(budget, machine, cost, copies_wait=copies_wait, link_use=link_use))
    if host is not None:
        parts.append(_host_binds(host))
    if budget.trace.in_pieces:
        parts.append(_in_pieces(budget.trace.in_pieces, budget.exact))
    return " ".join(parts)


def _in_pieces(count: int, exact: bool) -> str:
    operations = "1 operation runs" if count == 1 else f"{count} operations run"
    bits = "these are taken to give the same bits" if exact else "numbers MAY BE ROUNDED in another way"
    return f"{operations} in pieces, since one needs more than the limit: {bits}."


def _fits(budget: MemoryBudget, policy: str, overhead: float, *, is_slowed_by_host: bool) -> str:
    """Whether the step fits without LMS or with it, and how much longer it takes."""
    if budget.fits_without:
        told = f"Fits without LMS: the step needs {format_bytes(budget.need.stock)} of the device's "
        told += f"{format_bytes(budget.usable)}."
        if overhead >= _SMALL and is_slowed_by_host and budget.demand <= budget.limit:
            told += f" With LMS on, it takes {overhead:.0%} longer, though no page moves."
        elif overhead >= _SMALL:
            told += f" With the policy {policy}, under a limit of {format_bytes(budget.limit)}, it takes "
            told += f"{overhead:.0%} longer."
        return told
    if overhead < _NONE:
        return (
            "Fits with LMS: a step takes no longer than with unlimited device memory. More device memory or a faster "
            "link would not shorten it."
        )
    if overhead < _SMALL:
        return (
            f"Fits with LMS: a step takes {overhead:.1%} longer than with unlimited device memory. More "
            f"device memory or a faster link could save no more than that."
        )
    return f"Fits with LMS, but a step takes {overhead:.0%} longer than with unlimited device memory."


def _memory_or_link_binds(
    budget: MemoryBudget, machine: Machine, cost: PagingCost, *, copies_wait: float, link_use: float
) -> str:
    if budget.limit < _TIGHT * budget.need.largest_op:
        return _largest_op_binds(budget, machine)
    if copies_wait < 1 - _BUSY and cost.recomputed_bytes:
        return _memory_binds(budget, machine, cost)
    return _link_binds(budget, machine, cost, link_use)


def _host_binds(host: HostBinding) -> str:
    """That the host binds, and what to change: less work for it, or more for the device at once."""
    work = {None: "launches kernels", NATIVE: "launches kernels and does LMS's work in C++"}.get(
        host.interposer, "launches kernels and does LMS's work in Python"
    )
    told = f"Bound by the host: the device waits {host.wait:.0%} of the step for the processor, which {work}."
    if host.interposer is not None:
        told += f" Without LMS, with memory enough, it would wait {host.wait_unlimited:.0%}."
    if host.interposer == PYTHON:
        return f"{told} The native interposer takes less of its time, where there is one."
    return f"{told} Larger operations take more of the device's time and none of its: choose a larger batch or size."


def _largest_op_binds(budget: MemoryBudget, machine: Machine) -> str:
    need = budget.need
    binds = (
        f"The largest operation binds: {need.binding_op} has a working set (W) of {format_bytes(need.largest_op)}, and "
        f"pages may occupy {format_bytes(budget.limit)}, {budget.limit / need.largest_op:.1f} W. So little can "
        f"stay on the device beside it."
    )
    if budget.limit < budget.limit_of_device:
        return f"{binds} Raise the limit: the device has room for {format_bytes(budget.limit_of_device)}."
    change = "Choose a smaller size or batch, or a device with more memory:"
    whole = f"with {_memory(machine, need.stock)} the step fits without LMS."
    ample = with_fragmentation(int(_TIGHT * need.largest_op) + need.workspace + budget.extra_bytes)
    if ample >= need.stock:
        return f"{binds} {change} {whole}"
    return f"{binds} {change} with {_memory(machine, ample)} the operation no longer binds ({_TIGHT} W), and {whole}"


def _memory_binds(budget: MemoryBudget, machine: Machine, cost: PagingCost) -> str:
    return (
        f"Device memory binds: {format_bytes(cost.recomputed_bytes)} are recomputed in each step, since "
        f"{_link_of(machine)} would take longer to move them. {_faster_link(budget, machine)}"
    )


def _link_binds(budget: MemoryBudget, machine: Machine, cost: PagingCost, link_use: float) -> str:
    link = _link_of(machine)
    rate = max(cost.d2h_bytes_per_s or 0.0, cost.h2d_bytes_per_s or 0.0)
    told = (
        f"{link[0].upper()}{link[1:]} binds: it is busy {link_use:.0%} of the step, and moves "
        f"{format_bytes(cost.d2h_bytes)} from the device and {format_bytes(cost.h2d_bytes)} back, at up to "
        f"{format_bytes(rate)}/s."
    )
    if cost.disk_bytes and machine.link is not None:
        told += f" Host memory is full, and {format_bytes(cost.disk_bytes)} go to the disk: add host memory."
    return f"{told} {_faster_link(budget, machine)}"


def _faster_link(budget: MemoryBudget, machine: Machine) -> str:
    """What to change where a faster link helps, or more device memory."""
    faster = "a faster disk" if machine.link is None else "a machine with a faster link"
    if budget.limit < budget.limit_of_device:
        return (
            f"Raise the limit, since the device has room for {format_bytes(budget.limit_of_device)}, or choose "
            f"{faster}."
        )
    return (
        f"Choose {faster}, or a device with more memory: with {_memory(machine, budget.need.stock)} the step fits "
        f"without LMS."
    )


def _memory(machine: Machine, usable: int) -> str:
    """The memory of a device that has ``usable`` bytes for tensors, if it reserves as much as that of ``machine``."""
    return f"{format_bytes(usable + machine.accelerator.reserved_bytes)} of memory"


def _link_of(machine: Machine) -> str:
    return "the disk" if machine.link is None else "the link to the host"


def _room_below(machine: Machine, gpus: int) -> str:
    tiers, _ = lower_tiers(machine, gpus)
    rooms = []
    if Tier.HOST in tiers:
        rooms.append(f"{format_bytes(tiers[Tier.HOST])} of host memory")
    rooms.append(f"{format_bytes(tiers[Tier.DISK])} of disk" if Tier.DISK in tiers else "no disk")
    return " and ".join(rooms)
