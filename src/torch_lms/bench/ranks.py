"""What the ranks of a trial tell, as one: what moved is of all together, and a peak is that of the rank with most."""

from collections.abc import Sequence
from typing import Any

Fields = dict[str, Any]
"""The fields of ``Trial`` that only the processes know."""

_SUMS = ("evicted_bytes", "fetched_bytes", "evictions", "recomputes")

_MAXIMA = (
    *("wait_s", "demand_bytes", "limit_bytes", "ledger_bytes"),
    *("peak_device_bytes", "peak_host_bytes", "peak_disk_bytes", "peak_rss_bytes"),
)


def joined(ends: Sequence[Fields]) -> Fields:
    """One for all ranks, whose steps are in step: each takes as long as its slowest rank. Losses are the first's."""
    first = ends[0]
    if len(ends) == 1:
        return first
    sums = {name: sum(end[name] for end in ends) for name in _SUMS if name in first}
    maxima = {name: max(end[name] for end in ends) for name in _MAXIMA if name in first}
    found = {**first, **sums, **maxima, "step_s": _slowest([end["step_s"] for end in ends])}
    if "allocations" in first:
        found["allocations"] = {name: sum(end["allocations"][name] for end in ends) for name in first["allocations"]}
    if "inexact" in first:
        found["inexact"] = sorted({name for end in ends for name in end["inexact"]})
    return {**found, "warm_up": _warm_up([end["warm_up"] for end in ends])}


def _slowest(step_s: Sequence[Sequence[float]]) -> list[float]:
    return [max(seconds) for seconds in zip(*step_s, strict=True)]


def _warm_up(ends: Sequence[Fields]) -> Fields:
    """``planned_steps`` are those of the rank with least."""
    found = {**ends[0], "step_s": _slowest([end["step_s"] for end in ends])}
    if found["planning_s"] is not None:
        found["planning_s"] = sum(end["planning_s"] for end in ends)
        found["planned_steps"] = min(end["planned_steps"] for end in ends)
    return found
