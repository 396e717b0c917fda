"""What a step needs of a machine's memory, and what it gets: all that can be told without simulating it."""

from dataclasses import dataclass, replace
from math import inf

from torch_lms.machine import Machine
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds
from torch_lms.trace import Trace, demand_curve

FRAGMENTATION = 0.04
"""What the allocator holds beyond what the program holds, as a share of that: an assumption (docs/machines.md)."""

_HOST_SHARE = 0.9
"""Share of the host's memory that pages may have: an assumption."""


@dataclass(frozen=True)
class Need:
    """What a step needs of a device, in bytes, with its workspaces and what the allocator holds beyond.

    Attributes:
        stock: without LMS.
        largest_op: with LMS, at least: the working set (W) of the largest operation, and what has to stay.
        binding_op: the name of that operation.
        workspace: the largest workspace.
    """

    stock: int
    largest_op: int
    binding_op: str
    workspace: int


_UNTRIED = 1 << 62
"""As ``free_bytes``, where pieces need not be tried: they may be rounded in another way."""


def need_of(trace: Trace, extra_bytes: int = 0) -> Need:
    """What ``trace`` needs.

    Args:
        trace: the step.
        extra_bytes: bytes that are there all the time and no pages: DistributedDataParallel's buckets, say.
    """
    stock = 0
    largest = 0
    binding_op = ""
    largest_workspace = 0
    for op, alive in zip(trace.ops, demand_curve(trace).nbytes, strict=True):
        workspace = op.work.workspace_bytes if op.work is not None else 0
        working_set = sum(trace.pages[page].nbytes for page in {*op.pages, *op.creates}) + workspace
        stock = max(stock, alive + workspace)
        largest_workspace = max(largest_workspace, workspace)
        if working_set > largest:
            largest = working_set
            binding_op = op.name
    unpageable = sum(page.nbytes for page in trace.pages if page.unpageable)
    return Need(
        stock=with_fragmentation(stock + extra_bytes),
        largest_op=with_fragmentation(largest + unpageable + extra_bytes),
        binding_op=binding_op,
        workspace=largest_workspace,
    )


def within(
    trace: Trace, nbytes: int, extra_bytes: int = 0, free_bytes: int = 0, exact: bool = True
) -> tuple[Trace, Need]:
    """The step as LMS runs it where pages may occupy ``nbytes``, and what it needs. Operations run in pieces if one
    of them needs more. Without LMS they do not, so the need without LMS is that of the whole operations.

    Args:
        trace: the step.
        nbytes: bytes that pages may occupy.
        extra_bytes: bytes that are there all the time and no pages.
        free_bytes: bytes of the device beside all that.
        exact: whether pieces must give the same bits.
    """
    need = need_of(trace, extra_bytes)
    as_run = trace.under(nbytes, free_bytes if exact else _UNTRIED)
    return as_run, need if as_run is trace else replace(need_of(as_run, extra_bytes), stock=need.stock)


def with_fragmentation(nbytes: int) -> int:
    """``nbytes``, and what the allocator holds beyond them."""
    return int(nbytes * (1 + FRAGMENTATION))


@dataclass(frozen=True)
class MemoryBudget:
    """What a step needs of a device, and what it gets.

    Attributes:
        trace: the step as it is done there: large operations in pieces, if they must be.
        need: what ``trace`` needs.
        demand: the most bytes of pages at once, without a limit.
        limit: what pages may occupy, but for those of the operation that runs.
        limit_of_device: the limit that all of the device's memory allows.
        usable: bytes that the device has for tensors.
        extra_bytes: bytes that are there all the time and no pages.
        exact: whether pieces must give the same bits.
    """

    trace: Trace
    need: Need
    demand: int
    limit: int
    limit_of_device: int
    usable: int
    extra_bytes: int
    exact: bool = True

    @classmethod
    def of(
        cls,
        trace: Trace,
        machine: Machine,
        limit: int | None,
        extra_bytes: int,
        can_split: bool = True,
        exact: bool = True,
    ) -> "MemoryBudget":
        """The budget of ``trace`` on a device of ``machine``.

        Args:
            trace: the step.
            machine: where it runs.
            limit: as asked for; None: all that the device has beside ``extra_bytes`` and workspaces.
            extra_bytes: bytes that are there all the time and no pages.
            can_split: whether large operations may be split, or run in pieces.
            exact: whether pieces must give the same bits.
        """
        need = need_of(trace, extra_bytes)
        demand = demand_curve(trace).demand_bytes
        usable = machine.accelerator.usable_bytes
        limit_of_device = max(0, int(usable / (1 + FRAGMENTATION)) - need.workspace - extra_bytes)
        if need.stock <= usable:
            # All fits, though the largest workspace may be where not most is alive.
            limit_of_device = max(limit_of_device, demand)
        limit = limit_of_device if limit is None else min(limit, limit_of_device)
        budget = cls(trace, need, demand, limit, limit_of_device, usable, extra_bytes, exact)
        return budget.with_pieces() if can_split else budget

    def with_pieces(self) -> "MemoryBudget":
        """The same, where large operations are split, or run in pieces. To trace these takes seconds."""
        free_bytes = max(0, self.usable - with_fragmentation(self.limit + self.extra_bytes))
        trace, need = within(self.trace, self.limit, self.extra_bytes, free_bytes, self.exact)
        return replace(self, trace=trace, need=need)

    @property
    def fits_without(self) -> bool:
        """Whether the step fits without LMS."""
        return self.need.stock <= self.usable

    @property
    def fits_largest_op(self) -> bool:
        """Whether the largest operation fits. The limit does not bound it: it gives way to the operation that runs."""
        return self.need.largest_op <= self.usable

    def held_bytes(self, peak_bytes: int) -> int:
        """What a step holds of the device whose pages and workspaces peak at ``peak_bytes``."""
        return with_fragmentation(peak_bytes + self.extra_bytes)

    def holds(self, peak_bytes: int) -> bool:
        """Whether the device has that."""
        return self.held_bytes(peak_bytes) <= self.usable


def may_fit(
    trace: Trace,
    machine: Machine,
    *,
    policy: str = "planned",
    gpus: int = 1,
    limit: int | None = None,
    gradient_bytes: int = 0,
    exact: bool = True,
) -> bool:
    """Whether the device has room for the largest operation, and the tiers below it for the rest; under "none", whether
    it has room for all. That needs no simulation.

    Arguments are those of ``forecast``, which may find that the step does not fit all the same.

    Raises:
        UsageError: the machine has not so many GPUs.
    """
    whole = MemoryBudget.of(trace, machine, limit, gradient_bytes if gpus > 1 else 0, can_split=False, exact=exact)
    if policy == "none":
        return whole.fits_without
    tiers, _ = lower_tiers(machine, gpus)
    return whole.demand - whole.limit <= sum(tiers.values()) and whole.with_pieces().fits_largest_op


def lower_tiers(machine: Machine, gpus: int) -> tuple[dict[Tier, int], LinkSpeeds]:
    """The bytes that each of ``gpus`` ranks has of the lower tiers, nearest first; and the speeds of their links.

    The speeds are those of the slowest rank while all copy at once: the others wait for it.

    Raises:
        UsageError: the machine has not so many GPUs.
    """
    disk: dict[Tier, int] = {}
    disk_write = inf
    disk_read = inf
    if machine.disk is not None:
        disk[Tier.DISK] = machine.disk.nbytes // gpus
        disk_write = machine.disk.write_bytes_per_s / gpus
        disk_read = machine.disk.read_bytes_per_s / gpus
    if machine.link is None:  # the processor computes in the host's memory: the same cores make the copies
        return disk, LinkSpeeds(disk_write, disk_read, disk_write, disk_read, is_host_memory=True, overlap_penalty=1.0)
    host = int(_HOST_SHARE * machine.host_bytes) // gpus
    link = min(machine.links(gpus), key=lambda link: link.both_bytes_per_s)
    speeds = LinkSpeeds(
        link.to_host_bytes_per_s,
        link.to_device_bytes_per_s,
        disk_write,
        disk_read,
        link.both_bytes_per_s,
        link.latency_s,
    )
    return {Tier.HOST: host, **disk}, speeds
