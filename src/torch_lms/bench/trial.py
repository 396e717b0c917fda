"""What is asked of a process, and what came of it."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_lms.targets import Setting

COMPLETED = "completed"
OUT_OF_MEMORY = "out of memory"
CRASHED = "crashed"
REFUSED = "refused"

Point = Mapping[str, int]
"""The dimensions of a trial that are known, by their names."""


@dataclass(frozen=True)
class Asked:
    """What a process is to do.

    Attributes:
        target: its name.
        setting: how its step is asked for.
        way: one of ``ways.WAYS``.
        device: "cpu", or an accelerator's kind.
        limit: of a session of ours, as for ``enable``.
        card_bytes: memory of the card that this machine is taken for; None: all that there is.
        steps: that count, after the warm-up.
        patience_s: after a warm-up of so long, the steps count though none has followed a plan; None: never.
        rank: which of ``setting.gpus`` ranks the process is.
        meeting: a file by which the ranks find each other; "" where there is one.
        exact: of a session of ours, as for ``enable``.
    """

    target: str
    setting: Setting
    way: str
    device: str
    limit: str | None
    card_bytes: int | None
    steps: int
    patience_s: float | None = None
    rank: int = 0
    meeting: str = ""
    exact: bool = True


@dataclass(frozen=True)
class WarmUp:
    """The steps before those that count. ``planning_s`` is the processor's, for plans; None without a session.

    ``planned_steps``: how many of these steps followed a plan already.
    """

    steps: int = 0
    step_s: tuple[float, ...] = ()
    planning_s: float | None = None
    planned_steps: int | None = None


@dataclass(frozen=True)
class Trial:
    """What came of a trial, as the file has it (docs/bench.md). None: not known, or there is no such thing.

    Bytes, counts and seconds are of one step, and means over the steps that count; peaks are of these steps. How the
    figures of several ranks become one: ``ranks.joined``.

    Attributes:
        way: one of ``ways.WAYS``.
        point: where it is in the sweep or search.
        outcome: ``COMPLETED``, ``OUT_OF_MEMORY``, ``CRASHED`` or ``REFUSED``.
        reason: why it is not ``COMPLETED``.
        ranks: how many processes trained together.
        steps: how many count.
        step_s: seconds of each.
        step_s_median, step_s_quartiles: of these.
        items_per_s: by the median; ``item`` says of what.
        overhead: share by which the median exceeds that of stock PyTorch at the same point.
        evicted_bytes, fetched_bytes: moved from the device, and to it.
        evictions: how many pages were copied from the device.
        recomputes: how many pages were recomputed.
        wait_s: seconds in which the program waited for copies.
        demand_bytes, limit_bytes: of the session.
        ledger_bytes: the most that the session's pages held on the device.
        peak_device_bytes: on an accelerator as its allocator counts; on the CPU what the kernel counts for the process
            beyond what it had before the model was made.
        peak_host_bytes, peak_disk_bytes: in the lower tiers, as seen after forward and at the end of steps.
        peak_rss_bytes: of the process.
        allocations: how room was found, in the whole of the steps that count (``Stats.allocations``).
        inexact: operators whose pieces may have been rounded in another way (``Stats.inexact``).
        losses: of all steps, the warm-up's first, as ``float.hex``: equal text is equality to the bit.
        warm_up: before those steps.
        samples: of the machine, over time.
        forecast: what ``plan`` says.
    """

    way: str
    point: Point
    outcome: str
    reason: str = ""
    ranks: int = 1
    steps: int = 0
    step_s: tuple[float, ...] = ()
    step_s_median: float | None = None
    step_s_quartiles: tuple[float, float] | None = None
    items_per_s: float | None = None
    item: str = "items"
    overhead: float | None = None
    evicted_bytes: int | None = None
    fetched_bytes: int | None = None
    evictions: float | None = None
    recomputes: float | None = None
    wait_s: float | None = None
    demand_bytes: int | None = None
    limit_bytes: int | None = None
    ledger_bytes: int | None = None
    peak_device_bytes: int | None = None
    peak_host_bytes: int | None = None
    peak_disk_bytes: int | None = None
    peak_rss_bytes: int | None = None
    allocations: Mapping[str, int] | None = None
    inexact: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    warm_up: WarmUp = WarmUp()
    samples: Mapping[str, Any] = field(default_factory=dict)
    forecast: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_completed(self) -> bool:
        return self.outcome == COMPLETED

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "Trial":
        """The trial that a line of the file has. Fields that are not known are left out.

        Raises:
            KeyError, TypeError: it has not what every trial has.
        """
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        known["warm_up"] = WarmUp(**known.get("warm_up", {}))
        return cls(**known)


def quartiles(seconds: tuple[float, ...]) -> tuple[float, float]:
    """The lower and the upper quartile."""
    if len(seconds) < 2:
        return seconds[0], seconds[0]
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return low, high
