"""The figures of a session at a moment, and how fast they change."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch_lms.errors import UsageError

FORMAT = 1
"""Of a reading as JSON. Another number where a field has another meaning."""


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Pages that are alike.

    Attributes:
        count: how many.
        nbytes: of each.
        state: as in "resident"; see the states in docs/design.md.
        tier: "host" or "disk" where a copy is below the device, else "".
        unpageable: why they must stay on the device, else "".
    """

    count: int
    nbytes: int
    state: str
    tier: str
    unpageable: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of a session at a moment. Those that ``Stats`` has, too, mean the same there.

    Attributes:
        pid: of the process.
        time_s: when they were read, seconds since 1970.
        host_limit_bytes: most of page-locked host memory; 0 where there is no such tier.
        disk_free_bytes: what the disk of the spill file could still take.
        step_s: the last step, from the end of the one before; None before there was one.
        median_step_s: the median of the last 32.
        plan_step_s: what the operations of a step take that follows the plan, without waiting; None without a plan.
        pages: the largest, the largest first.
        format: see ``FORMAT``.
    """

    pid: int
    time_s: float
    policy: str
    interposer: str
    steps: int
    planned_steps: int
    limit_bytes: int
    resident_bytes: int
    peak_resident_bytes: int
    demand_bytes: int
    reserved_bytes: int
    host_bytes: int
    host_limit_bytes: int
    disk_bytes: int
    disk_free_bytes: int
    evicted_bytes: int
    fetched_bytes: int
    recomputed_bytes: int
    stall_s: float
    hidden_fraction: float
    unpaged_bytes: Mapping[str, int]
    step_s: float | None
    median_step_s: float | None
    plan_step_s: float | None
    pages: tuple[PageGroup, ...]
    format: int = FORMAT

    def as_line(self) -> str:
        """As JSON, in one line."""
        return json.dumps(asdict(self)) + "\n"


def reading_in(line: str) -> Reading:
    """The reading that ``as_line`` wrote.

    Raises:
        UsageError: it is none, or of another version.
    """
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        raise UsageError(f"expected a line of JSON from the session, got {line[:60]!r}") from None
    wanted = {field.name for field in fields(Reading)}
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.keys() != wanted:
        raise UsageError("the session runs another version of torch-lms: watch it with the same version")
    return Reading(**{**found, "pages": tuple(_group(each) for each in found["pages"])})


def _group(found: Mapping[str, Any]) -> PageGroup:
    return PageGroup(**found)


@dataclass(frozen=True, slots=True)
class Pace:
    """What happened between two readings.

    Attributes:
        out_bytes_per_s: copied from the device.
        in_bytes_per_s: copied back.
        recomputed_bytes_per_s: recomputed instead.
        waited_fraction: share of the time in which the program waited for copies; over 1 if several devices did.
    """

    out_bytes_per_s: float
    in_bytes_per_s: float
    recomputed_bytes_per_s: float
    waited_fraction: float


def pace_between(earlier: Reading | None, later: Reading) -> Pace | None:
    """None where there is no earlier one, or where the session has begun to count anew since."""
    if earlier is None or earlier.evicted_bytes > later.evicted_bytes or earlier.steps > later.steps:
        return None
    seconds = later.time_s - earlier.time_s
    if seconds <= 0:
        return None
    return Pace(
        out_bytes_per_s=(later.evicted_bytes - earlier.evicted_bytes) / seconds,
        in_bytes_per_s=(later.fetched_bytes - earlier.fetched_bytes) / seconds,
        recomputed_bytes_per_s=(later.recomputed_bytes - earlier.recomputed_bytes) / seconds,
        waited_fraction=max(0.0, later.stall_s - earlier.stall_s) / seconds,
    )
