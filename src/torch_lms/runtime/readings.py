"""Takes readings of a session: the figures that are shown while it runs."""

import os
import shutil
import time
from heapq import nlargest
from operator import attrgetter

from torch_lms.live import PageGroup, Reading
from torch_lms.policy import Plan
from torch_lms.residency import Page, Tier
from torch_lms.runtime.backend import DeviceBackend
from torch_lms.runtime.session import Session
from torch_lms.runtime.step_times import StepTimes

_MAX_PAGES = 32
"""Of the largest, in groups of those that are alike."""


def take_reading(session: Session, times: StepTimes) -> Reading:
    """The figures of ``session`` that can be had without disturbing it. Its lock is held as long as for ``stats``."""
    options = session.options
    with session.undisturbed() as (backends, stats):
        pages = _largest(backends)
        plan = _plan_in_force(backends)
        has_host = any(Tier.HOST in backend.tiers for backend in backends)
    step_s, median_step_s = times.last_and_median_s()
    return Reading(
        pid=os.getpid(),
        time_s=time.time(),
        policy=stats.policy,
        interposer=stats.interposer,
        steps=stats.steps,
        planned_steps=stats.planned_steps,
        limit_bytes=stats.limit_bytes,
        resident_bytes=stats.resident_bytes,
        peak_resident_bytes=stats.peak_resident_bytes,
        demand_bytes=stats.demand_bytes,
        reserved_bytes=stats.reserved_bytes,
        host_bytes=stats.host_bytes,
        host_limit_bytes=options.host_limit if has_host else 0,
        disk_bytes=stats.disk_bytes,
        disk_free_bytes=_free_bytes(str(options.spill_dir)),
        evicted_bytes=stats.evicted_bytes,
        fetched_bytes=stats.fetched_bytes,
        recomputed_bytes=stats.recomputed_bytes,
        stall_s=stats.stall_s,
        hidden_fraction=stats.hidden_fraction,
        unpaged_bytes=stats.unpaged_bytes,
        step_s=step_s,
        median_step_s=median_step_s,
        plan_step_s=None if plan is None else sum(op.seconds for op in plan.trace.ops),
        pages=pages,
    )


def _largest(backends: list[DeviceBackend]) -> tuple[PageGroup, ...]:
    pages = (page for backend in backends for page in backend.engine.pager.book)
    alike: dict[tuple[int, str, str, str], int] = {}
    for page in nlargest(_MAX_PAGES, pages, key=attrgetter("nbytes")):
        kind = _kind(page)
        alike[kind] = alike.get(kind, 0) + 1
    return tuple(PageGroup(count, *kind) for kind, count in alike.items())


def _kind(page: Page) -> tuple[int, str, str, str]:
    tier = "" if page.tier is None else page.tier.value
    return page.nbytes, page.state.value, tier, page.unpageable


def _plan_in_force(backends: list[DeviceBackend]) -> Plan | None:
    """The plan that was followed last."""
    plans = [backend.plans for backend in backends if backend.plans is not None]
    return next((cache.kinds[0].plan for cache in plans if cache.kinds), None)


def _free_bytes(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:  # it was removed
        return 0
