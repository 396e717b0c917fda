"""Collects the statistics of a session from its devices."""

from collections.abc import Iterable

from torch_lms.capture.raw import ESCAPED
from torch_lms.engine import Kind
from torch_lms.planner import floor_bytes
from torch_lms.runtime.backend import DeviceBackend
from torch_lms.runtime.holds import Loan
from torch_lms.runtime.stats import Stats
from torch_lms.timeline import Lane


def collect(backends: list[DeviceBackend], policy: str, loans: Iterable[Loan]) -> Stats:
    """The figures now, over all devices. ``policy`` is the name of the one in force; ``loans`` count as unpaged."""
    engines = [backend.engine for backend in backends]
    for engine in engines:
        engine.count_transfers()
    counters = [engine.pager.counters for engine in engines]
    ledgers = [engine.pager.book.ledger for engine in engines]
    plans = [backend.plans for backend in backends if backend.plans is not None]
    excess = max(backend.excess for backend in backends)
    recoveries = sum(engine.recoveries for engine in engines)
    allocators = [backend.allocator for backend in backends if backend.allocator is not None]
    stall_s = sum(backend.executor.stall_s for backend in backends)
    busy_s = sum(engine.busy_s for engine in engines)
    return Stats(
        steps=max(c.steps for c in counters),
        demand_bytes=sum(c.demand_bytes or ledger.peak_live for c, ledger in zip(counters, ledgers, strict=True)),
        limit_bytes=sum(engine.pager.limit for engine in engines),
        resident_bytes=sum(ledger.device for ledger in ledgers),
        peak_resident_bytes=sum(ledger.peak_device for ledger in ledgers),
        allocated_bytes=sum(allocator.allocated_bytes for allocator in allocators),
        reserved_bytes=sum(allocator.reserved_bytes for allocator in allocators),
        evicted_bytes=sum(c.evicted_bytes for c in counters),
        evictions=sum(c.evictions for c in counters),
        fetched_bytes=sum(c.fetched_bytes for c in counters),
        fetches=sum(c.fetches for c in counters),
        clean_drops=sum(c.clean_drops for c in counters),
        recomputed_bytes=sum(c.recomputed_bytes for c in counters),
        recomputes=sum(c.recomputes for c in counters),
        stall_s=stall_s,
        hidden_fraction=max(0.0, 1 - stall_s / busy_s) if busy_s else 1.0,
        link_bytes_per_s={
            lane.value: sum(engine.links[lane].bytes_per_s for engine in engines) for lane in (Lane.D2H, Lane.H2D)
        },
        host_bytes=sum(ledger.host for ledger in ledgers),
        disk_bytes=sum(ledger.disk for ledger in ledgers),
        file_bytes=sum(ledger.file for ledger in ledgers),
        policy=policy,
        planned_steps=sum(cache.planned_steps for cache in plans),
        diverged_steps=sum(cache.diverged_steps for cache in plans),
        rejoined_steps=sum(cache.rejoined_steps for cache in plans),
        replans=sum(cache.replans for cache in plans),
        planning_s=sum(cache.planning_s for cache in plans),
        over_limit_bytes=excess.nbytes,
        over_limit_in=excess.operator,
        recoveries=recoveries,
        unpaged_bytes=_unpaged(backends, loans),
        allocations={
            "free": sum(c.room_from_free for c in counters),
            "one": sum(c.room_from_one for c in counters),
            "some": sum(c.room_from_some for c in counters),
            "all": sum(c.room_from_all for c in counters),
            "retry": recoveries,
        },
    )


def _unpaged(backends: list[DeviceBackend], loans: Iterable[Loan]) -> dict[str, int]:
    """Bytes that stay on their devices, by reason; what is lent is among them."""
    lent = {(loan.engine, page) for loan in loans for page in loan.pages}
    found: dict[str, int] = {}
    for backend in backends:
        engine = backend.engine
        for page in engine.pager.book:
            reason = page.unpageable
            if not reason and (engine, page.id) in lent:
                reason = ESCAPED
            if reason:
                found[reason] = found.get(reason, 0) + page.nbytes
    return found


def traffic_ratio(kinds: list[Kind]) -> float | None:
    """See ``Stats.traffic_ratio``. Takes as long as planning or longer, once for each plan.

    Args:
        kinds: of steps, with their plans.

    Raises:
        ImportError: scipy is not installed.
    """
    evicted_bytes = sum(kind.evicted_bytes for kind in kinds)
    least_bytes = 0.0
    for kind in kinds:
        if not kind.steps:
            continue
        if kind.floor_bytes is None:
            kind.floor_bytes = floor_bytes(kind.plan.trace, kind.plan.limit)
        least_bytes += kind.steps * kind.floor_bytes
    return evicted_bytes / least_bytes if least_bytes else None
