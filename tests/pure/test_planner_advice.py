"""What a forecast says in words: what binds, what to change or to buy, and figures that are those of the forecast."""

from dataclasses import replace

import pytest
from made_traces import random_training

from torch_lms.machine import Disk, Machine, load
from torch_lms.planner import advice
from torch_lms.planner.feasibility import MemoryBudget
from torch_lms.planner.paging import PagingCost
from torch_lms.trace import Trace

RESERVED = 7
STEP = random_training(5)


def machine(usable: int, **changes: object) -> Machine:
    there = load("ac922-v100-16gb")
    accelerator = replace(there.accelerator, memory_bytes=usable + RESERVED, reserved_bytes=RESERVED)
    return replace(there, accelerator=accelerator, **changes)


def budget(there: Machine, trace: Trace = STEP, limit: int | None = None) -> MemoryBudget:
    return MemoryBudget.of(trace, there, limit, extra_bytes=0)


NEED = budget(machine(1 << 20)).need
LITTLE = NEED.largest_op + 1
"""Room for the largest operation, and for next to nothing beside it."""

AMPLE = NEED.stock - 10
"""Room for nearly all."""


def said(
    there: Machine,
    overhead: float,
    copies_wait: float = 0.5,
    limit: int | None = None,
    host: advice.HostBinding | None = None,
    **cost: float,
) -> str:
    paid = PagingCost(**cost)  # type: ignore[arg-type]
    asked = budget(there, limit=limit)
    return advice.fits(
        asked, there, "planned", paid, overhead=overhead, copies_wait=copies_wait, link_use=0.97, host=host
    )


def test_a_device_on_which_the_step_would_fit_is_named_by_its_whole_memory() -> None:
    there = machine(AMPLE)
    for told in (
        advice.does_not_fit_without_lms(budget(there), there),
        said(there, 0.4, d2h_s=1.0, d2h_bytes=50),
        advice.peak_does_not_fit(budget(there), there, 10**6, "demand"),
    ):
        assert f"{NEED.stock + RESERVED} B of memory" in told
    assert budget(machine(NEED.stock)).fits_without
    assert not budget(machine(NEED.stock - 1)).fits_without


def test_the_largest_operation_is_named_with_its_working_set() -> None:
    there = machine(NEED.largest_op - 1)
    told = advice.largest_op_does_not_fit(budget(there), there)
    assert f"{NEED.binding_op} alone needs {NEED.largest_op} B of the device's {NEED.largest_op - 1} B" in told
    assert "working set (W)" in told
    assert f"at least {NEED.largest_op + RESERVED} B of memory" in told


def test_where_little_room_is_beside_the_largest_operation_it_binds() -> None:
    told = said(machine(LITTLE), 0.4)
    assert f"The largest operation binds: {NEED.binding_op} has a working set (W) of {NEED.largest_op} B" in told
    assert "takes 40% longer" in told


def test_where_much_is_recomputed_and_nobody_waits_memory_binds() -> None:
    told = said(machine(AMPLE), 0.4, copies_wait=0.01, recomputed_bytes=30)
    assert "Device memory binds: 30 B are recomputed in each step" in told
    assert "faster link" in told


def test_where_copies_are_waited_for_the_link_binds() -> None:
    told = said(machine(AMPLE), 0.4, d2h_s=2.0, h2d_s=1.0, d2h_bytes=50, h2d_bytes=40)
    assert "The link to the host binds: it is busy 97% of the step" in told
    assert "moves 50 B from the device and 40 B back, at up to 40 B/s" in told


def test_a_processor_has_a_disk_and_no_link() -> None:
    told = said(machine(AMPLE, link=None, disk=Disk(1e9, 1e9, 1 << 40)), 0.4, d2h_s=2.0, d2h_bytes=50)
    assert "The disk binds" in told
    assert "a faster disk" in told
    assert "link" not in told


def test_where_host_memory_is_full_that_is_said() -> None:
    assert "Host memory is full, and 12 B go to the disk" in said(machine(AMPLE), 0.4, disk_bytes=12)


@pytest.mark.parametrize("limit", [NEED.largest_op // 2, 2 * NEED.largest_op])
def test_before_anything_is_bought_the_limit_is_raised(limit: int) -> None:
    there = machine(AMPLE)
    told = said(there, 0.4, limit=limit)
    assert "Raise the limit" in told
    assert f"room for {budget(there).limit} B" in told


@pytest.mark.parametrize(
    ("overhead", "told"), [(1e-6, "takes no longer than"), (0.012, "takes 1.2% longer"), (0.4, "takes 40% longer")]
)
def test_how_much_longer_it_takes(overhead: float, told: str) -> None:
    assert told in said(machine(AMPLE), overhead)


def test_what_fits_without_lms_needs_nothing_and_tells_what_a_limit_costs() -> None:
    there = machine(NEED.stock)
    plain = f"Fits without LMS: the step needs {NEED.stock} B of the device's {NEED.stock} B."
    assert said(there, 0.0) == plain
    assert said(there, 0.4, limit=50) == f"{plain} With the policy planned, under a limit of 50 B, it takes 40% longer."
    assert "It fits without LMS: choose another policy" in advice.peak_does_not_fit(
        budget(there), there, 10**6, "demand"
    )


def test_where_the_device_waits_for_the_host_more_than_for_copies_the_host_binds() -> None:
    there = machine(AMPLE)
    python = advice.HostBinding(0.53, 0.04, "python")
    told = said(there, 0.4, host=python, host_wait_s=2.0, stall_s=1.0, d2h_bytes=50)
    assert "Bound by the host: the device waits 53% of the step" in told
    assert "LMS's work in Python" in told
    assert "Without LMS, with memory enough, it would wait 4%." in told
    assert "The native interposer takes less" in told
    assert "link" not in told

    both = said(there, 0.4, host=python, host_wait_s=1.0, stall_s=2.0, d2h_bytes=50)
    assert both.index("The link to the host binds") < both.index("Bound by the host")


def test_what_is_bound_by_the_host_with_the_native_interposer_or_none_needs_larger_operations() -> None:
    there = machine(NEED.stock)
    native, stock = (said(there, 0.0, host=advice.HostBinding(0.3, 0.3, way)) for way in ("native", None))
    for told in (native, stock):
        assert told.startswith("Fits without LMS")
        assert "choose a larger batch" in told
    slower = said(there, 0.4, host=advice.HostBinding(0.3, 0.0, "python"))
    assert "With LMS on, it takes 40% longer, though no page moves. Bound by the host" in slower
    assert "LMS's work in C++" in native
    assert "LMS's work" not in stock


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"host_bytes": 10}, "9 B of host memory and no disk"),
        ({"host_bytes": 10, "disk": Disk(1e9, 1e9, 20)}, "9 B of host memory and 20 B of disk"),
        ({"link": None}, "no disk"),
    ],
    ids=["no disk", "both", "processor"],
)
def test_tiers_that_are_too_small_are_told_with_their_sizes(changes: dict[str, object], told: str) -> None:
    there = machine(AMPLE, **changes)
    asked = budget(there)
    found = advice.tiers_do_not_hold(asked, there, 1, "planned")
    assert f"Each device has {told}." in found
    assert f"At least {asked.demand - asked.limit} B must be evicted" in found
