"""What a session tells of itself."""

from dataclasses import asdict, dataclass, field
from typing import Any

from torch_lms.policy import Plan
from torch_lms.timeline import Timeline
from torch_lms.trace import Trace
from torch_lms.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Step:
    """What is known of the last step in which room was short; None before there was one.

    Attributes:
        trace: what it did. Only of planned sessions, as the next.
        plan: the plan that was made or followed last.
        timeline: when what happened.
        device: the kind of device that it ran on, as in "cuda"; "" before there was one.
        overlap_penalty: share of a copy's time that the program loses there though it does not wait for it.
    """

    trace: Trace | None = None
    plan: Plan | None = None
    timeline: Timeline | None = None
    device: str = ""
    overlap_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of a session, over all its devices. Cumulative since ``reset_stats()`` unless said otherwise.

    Attributes:
        steps: training steps (or inference calls) seen.
        demand_bytes: the most bytes alive at once in the largest of the steps counted, or so far, if none has ended;
            what the device would have had to hold without LMS.
        limit_bytes: the limit in force now.
        resident_bytes: on the device now.
        peak_resident_bytes: the most there has been on the device. What was there before LMS saw it counts once the
            first operation that uses it has made room.
        allocated_bytes, reserved_bytes: what PyTorch's allocator has given out on an accelerator now, pages or not, and
            that with what it has cached; 0 on the CPU.
        evicted_bytes, evictions: copied from the device to a lower tier.
        fetched_bytes, fetches: copied back.
        recomputed_bytes: recomputed instead of fetched.
        recomputes: how often.
        clean_drops: pages freed without a copy, because one was still valid below.
        stall_s: seconds in which the program waited for copies: the host, or on an accelerator the stream it uses.
        hidden_fraction: share of the time of all copies in which the program did not wait; 1 if none were made.
        link_bytes_per_s: achieved by the copies "out" and "in", while there were any.
        host_bytes, disk_bytes: in the lower tiers now.
        file_bytes: in the files from which they were loaded, now; they need not be written to leave.
        planned_steps: steps that followed a plan to their end.
        diverged_steps: steps that followed none to their end, though there were plans.
        rejoined_steps: those among them that had left a plan, and came back to it.
        replans: plans made after the first: better ones, and those for other kinds of steps.
        planning_s: seconds of a processor that making plans took, beside the program.
        traffic_ratio: bytes evicted in planned steps over the least that any plan without recomputation could evict;
            below 1 if enough was recomputed, or if steps had smaller pages than their plan. None if nothing had to, or
            if it was not asked for (``torch_lms.stats(floor=True)``).
        policy: the one in force.
        interposer: what sees the operations, "native" or "python"; "off" without a session.
        interposer_reason: why it is that one.
        in_pieces: operations that needed more than the limit by themselves, and ran in pieces.
        over_limit_bytes: by so much pages exceeded the limit, at most: an operation needed more by itself and could not
            be cut, what had to stay left it too little room, or it created more than was known; or the process forked.
        over_limit_in: the operator that ran then, or "fork"; "" if none did.
        unproved: operators that ran as a whole, since there was no memory to try whether pieces give the same bits.
        inexact: operators whose pieces may have been rounded in another way; only with ``exact=False``.
        recoveries: operations that ran out of memory and ran again after everything else had been evicted.
        unpaged_bytes: bytes alive now that must stay on the device, by reason.
        held_outputs: bytes of tensors that outputs of a notebook hold now, by their names, as "Out[3]"; where
            ``%load_ext torch_lms`` was run.
        allocations: how room for operations was found: "free", by evicting "one", "some" or "all" others, by "retry".
    """

    steps: int = 0
    demand_bytes: int = 0
    limit_bytes: int = 0
    resident_bytes: int = 0
    peak_resident_bytes: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    evicted_bytes: int = 0
    evictions: int = 0
    fetched_bytes: int = 0
    fetches: int = 0
    recomputed_bytes: int = 0
    recomputes: int = 0
    clean_drops: int = 0
    stall_s: float = 0.0
    hidden_fraction: float = 1.0
    link_bytes_per_s: dict[str, float] = field(default_factory=dict)
    host_bytes: int = 0
    disk_bytes: int = 0
    file_bytes: int = 0
    planned_steps: int = 0
    diverged_steps: int = 0
    rejoined_steps: int = 0
    replans: int = 0
    planning_s: float = 0.0
    traffic_ratio: float | None = None
    policy: str = "off"
    interposer: str = "off"
    interposer_reason: str = ""
    in_pieces: int = 0
    over_limit_bytes: int = 0
    over_limit_in: str = ""
    unproved: tuple[str, ...] = ()
    inexact: tuple[str, ...] = ()
    recoveries: int = 0
    unpaged_bytes: dict[str, int] = field(default_factory=dict)
    held_outputs: dict[str, int] = field(default_factory=dict)
    allocations: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def _of_limit(self) -> list[str]:
        if not self.over_limit_bytes:
            return []
        return [f"  over the limit by {format_bytes(self.over_limit_bytes)} at most, in {self.over_limit_in}"]

    def _of_allocator(self) -> list[str]:
        if not self.reserved_bytes:
            return []
        allocated, reserved = format_bytes(self.allocated_bytes), format_bytes(self.reserved_bytes)
        return [f"  for PyTorch    {allocated} allocated, pages and others, of {reserved} reserved"]

    def _of_pieces(self) -> list[str]:
        lines = [f"  in pieces      {self.in_pieces} operations larger than the limit"] if self.in_pieces else []
        if self.unproved:
            lines.append(f"  not in pieces  {', '.join(self.unproved)}: no memory to prove that the bits are the same")
        if self.inexact:
            lines.append(f"  NOT EXACT      pieces of {', '.join(self.inexact)} may be rounded in another way")
        return lines

    def _of_another_device(self) -> list[str]:
        if self.demand_bytes or not self.steps:
            return []
        return ['  nothing of it  was on the device that LMS manages: enable(device=...) says which, as device="cpu"']

    def _of_outputs(self) -> list[str]:
        if not self.held_outputs:
            return []
        held = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in self.held_outputs.items())
        return [f"  outputs hold   {held}"]

    @property
    def _below(self) -> str:
        below = f"in host memory {format_bytes(self.host_bytes)}, on disk {format_bytes(self.disk_bytes)}"
        return below + (f", in loaded files {format_bytes(self.file_bytes)}" if self.file_bytes else "")

    def __str__(self) -> str:
        unpaged = ", ".join(f"{format_bytes(n)} {reason}" for reason, n in self.unpaged_bytes.items()) or "none"
        return "\n".join(
            (
                f"LMS ({self.policy}, {self.interposer}): {self.steps} steps, "
                f"demand {format_bytes(self.demand_bytes)}, limit {format_bytes(self.limit_bytes)}",
                f"  on the device  {format_bytes(self.resident_bytes)} (at most "
                f"{format_bytes(self.peak_resident_bytes)}), {self._below}",
                *self._of_limit(),
                *self._of_allocator(),
                f"  evicted        {format_bytes(self.evicted_bytes)} in {self.evictions} evictions, "
                f"{self.clean_drops} more without a copy",
                f"  fetched        {format_bytes(self.fetched_bytes)} in {self.fetches} fetches, "
                f"{format_seconds(self.stall_s)} waited "
                f"({self.hidden_fraction:.0%} of the copies' time was hidden)",
                f"  cannot move    {unpaged}",
                *self._of_another_device(),
                *self._of_pieces(),
                *self._of_outputs(),
            )
        )
