"""What a forecast adds for LMS's own work, what it takes a limit for, and what it leaves open."""

from dataclasses import replace

import pytest
from made_traces import THERE_AND_BACK

from torch_lms.errors import UsageError
from torch_lms.machine import INTERPOSERS, KINDS, Calibration, Disk, Efficiency, HostCost, Machine, load
from torch_lms.planner import POLICIES, Forecast, HostPart, forecast, may_fit
from torch_lms.planner.rivals import RIVALS
from torch_lms.sim.clocks import KERNEL_S
from torch_lms.trace import Trace, Work

GPU = load("ac922-v100-16gb")
CPU = replace(GPU, link=None, disk=Disk(1e15, 1e15, 1 << 50))
FREE = HostCost(0.0, 0.0, 0.0, "made up")
UNMEASURED = Calibration(
    "", dict.fromkeys(KINDS, Efficiency(1.0, 1.0)), 0.1, "made up", host_costs=dict.fromkeys(INTERPOSERS, FREE)
)
LAUNCHES = 3
SMALL_S = (LAUNCHES - 1) * KERNEL_S
"""What the small operations after each operation take a device."""

SIMULATED = (
    *("host_work_s", "host_wait", "is_host_bound", "host_part_s"),
    *("host_bytes", "disk_bytes", "step_s", "overhead", "data_rate", "gpu_use", "link_use", "d2h_bytes", "h2d_bytes"),
    *("d2h_bytes_per_s", "h2d_bytes_per_s", "recomputed_bytes", "efficiency", "step_s_low", "step_s_high", "timeline"),
)


def step(op_s: float, workspaces: tuple[int, ...] = (0,) * 5) -> Trace:
    """Of five operations, each of which takes ``op_s``, the two smaller ones after it and their launches included."""
    work = Work("copy", "float32", 0, int(op_s * GPU.accelerator.memory_bytes_per_s), launches=LAUNCHES)
    ops = (
        op._replace(work=work._replace(workspace_bytes=nbytes), is_repeatable=False)
        for op, nbytes in zip(THERE_AND_BACK.ops, workspaces, strict=True)
    )
    return Trace(THERE_AND_BACK.pages, tuple(ops))


def told(
    machine: Machine,
    op_s: float,
    policy: str = "planned",
    limit: int | None = 20,
    cost: HostCost = FREE,
    paging_byte_s: float = 0.0,
) -> Forecast:
    """Of ``step``."""
    calibration = replace(UNMEASURED, host_costs=dict.fromkeys(INTERPOSERS, cost), paging_byte_s=paging_byte_s)
    return forecast(step(op_s), machine, calibration, items=1, policy=policy, limit=limit)


def test_the_hosts_own_part_is_hidden_as_long_as_it_can_be() -> None:
    """Reading goes on beside the device; what the network computes on the host does not."""

    def with_part(part: HostPart, samples: int = 4) -> Forecast:
        return forecast(step(1.0), GPU, UNMEASURED, items=1, samples=samples, host_part=part)

    bare = with_part(HostPart())
    hidden = with_part(HostPart(sample_s=2.0, workers=2))
    assert seconds_of(hidden) == seconds_of(bare) > 4
    assert hidden.host_part_s == 0
    bound = with_part(HostPart(sample_s=20.0, workers=2, step_s=1.0))
    assert seconds_of(bound) == bound.step_s_unlimited == pytest.approx(40)
    assert bound.host_part_s == pytest.approx(40 - seconds_of(bare))
    waits = with_part(HostPart(step_s=1.0))
    assert seconds_of(waits) == pytest.approx(seconds_of(bare) + 1)
    assert waits.gpu_use is not None
    assert bare.gpu_use is not None
    assert waits.gpu_use < bare.gpu_use


@pytest.mark.parametrize("given", [{"sample_s": -1.0}, {"step_s": float("inf")}, {"workers": 0}])
def test_a_part_of_the_host_that_cannot_be(given: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        HostPart(**given)  # type: ignore[arg-type]


def seconds_of(found: Forecast) -> float:
    assert found.step_s is not None
    return found.step_s


def holding(nbytes: int, host_bytes: int = 1000) -> Machine:
    """A GPU with room for so much, the allocator's waste included."""
    accelerator = replace(GPU.accelerator, memory_bytes=nbytes, reserved_bytes=0)
    return replace(GPU, accelerator=accelerator, host_bytes=host_bytes)


def costing(op_s: float = 0.0, short_op_s: float = 0.0, action_s: float = 0.0) -> HostCost:
    """Of LMS, on the host that is asked about."""
    return HostCost(op_s, short_op_s, action_s, "made up")


def test_a_processor_does_operations_and_the_work_of_lms_in_turns() -> None:
    plain, paged = (told(CPU, 1.0, cost=costing(short_op_s=seconds)) for seconds in (0.0, 0.1))
    assert seconds_of(paged) - seconds_of(plain) == pytest.approx(0.1 * LAUNCHES * 5)
    assert paged.step_s_unlimited == plain.step_s_unlimited
    assert paged.host_wait == pytest.approx(0.1 * LAUNCHES * 5 / seconds_of(paged))
    assert not paged.is_host_bound  # there is no device that could wait


@pytest.mark.parametrize(("op_s", "bound_s"), [(1.0, 5.0), (1e-3, 5 * LAUNCHES * 0.1)], ids=["ahead", "behind"])
def test_beside_a_device_the_work_of_lms_counts_when_the_host_is_no_longer_ahead(op_s: float, bound_s: float) -> None:
    paged = told(GPU, op_s, cost=costing(short_op_s=0.1))
    assert paged.step_s == pytest.approx(bound_s, rel=1e-3)
    assert paged.gpu_use == pytest.approx(5 * op_s / bound_s, rel=0.05)
    assert paged.host_work_s == pytest.approx(5 * LAUNCHES * (0.1 + GPU.accelerator.launch_s))
    assert paged.is_host_bound is (op_s < 0.1)
    assert paged.host_wait == pytest.approx(1 - 5 * op_s / bound_s, abs=0.01)
    assert ("Bound by the host" in paged.advice) is paged.is_host_bound


def test_every_action_takes_the_host_time() -> None:
    """Page 1 leaves in three actions and comes back in two, each step."""
    plain, paged = (told(GPU, 1e-3, "planned-moves", cost=costing(action_s=seconds)) for seconds in (0.0, 0.1))
    assert plain.host_work_s is not None
    assert paged.host_work_s == pytest.approx(plain.host_work_s + 5 * 0.1)
    assert paged.step_s == pytest.approx(5 * 0.1, rel=0.05)


def test_while_all_fits_lms_takes_the_host_little() -> None:
    """The step of a stock program may be bound by the host as well: it is, here, and LMS adds its own share."""
    cost = costing(op_s=2e-6, short_op_s=1.0, action_s=1.0)
    found = told(GPU, 1e-6, limit=None, cost=cost)
    launches_s = 5 * LAUNCHES * GPU.accelerator.launch_s
    assert found.fits_without
    assert found.step_s_unlimited == pytest.approx(launches_s, rel=0.1)
    assert found.overhead == pytest.approx(2e-6 / GPU.accelerator.launch_s, rel=0.1)
    assert found.is_host_bound
    assert found.is_host_bound_unlimited
    assert found.host_wait_unlimited > 0.5
    assert "Bound by the host" in found.advice


def test_small_operations_hide_behind_a_large_one() -> None:
    found = told(GPU, 1.0, limit=None)
    assert found.step_s == pytest.approx(5 * (1.0 + SMALL_S), rel=1e-9)
    assert found.host_wait == 0.0


def test_the_interposer_is_the_fastest_of_those_that_there_are() -> None:
    native = costing(op_s=1e-6, short_op_s=0.1)
    python = costing(op_s=9e-6, short_op_s=0.4)
    both = replace(UNMEASURED, host_costs={"native": native, "python": python})
    without = replace(both, host_costs={"native": replace(native, is_available=False), "python": python})
    for calibration, asked, way, op_s in (
        (both, "auto", "native", 0.1),
        (both, "python", "python", 0.4),
        (without, "auto", "python", 0.4),
    ):
        found = forecast(step(1e-3), GPU, calibration, items=1, limit=20, interposer=asked)
        assert found.interposer == way
        assert found.step_s == pytest.approx(5 * LAUNCHES * op_s, rel=0.01)
    with pytest.raises(UsageError, match="interposer must be one of auto, native, python; got 'C'"):
        forecast(step(1.0), GPU, both, items=1, interposer="C")


@pytest.mark.parametrize("policy", ["none", *RIVALS])
def test_where_lms_takes_no_part_nothing_is_interposed(policy: str) -> None:
    assert told(GPU, 1.0, policy).interposer is None


def test_memory_that_was_given_back_has_to_be_given_anew() -> None:
    plain, paged = (told(CPU, 1.0, paging_byte_s=seconds) for seconds in (0.0, 0.01))
    assert plain.h2d_bytes
    assert seconds_of(paged) - seconds_of(plain) == pytest.approx(0.01 * plain.h2d_bytes)


@pytest.mark.parametrize(("policy", "limit"), [("none", 20), ("planned", 40), ("swap-all", 20)])
def test_no_shortage_costs_anything_without_lms_or_while_all_fits(policy: str, limit: int) -> None:
    plain = told(CPU, 1.0, policy, limit)
    assert told(CPU, 1.0, policy, limit, cost=costing(short_op_s=0.1, action_s=0.1)) == plain


@pytest.mark.parametrize("machine", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "none"])
def test_with_limit_0_all_leaves_that_is_not_in_use(policy: str, machine: Machine) -> None:
    """As at run time: pages are those of the operation that runs, and it runs."""
    found = told(machine, 1.0, policy, limit=0)
    assert (found.fits_with, found.limit_bytes) == (True, 0)
    assert found.d2h_bytes
    assert found.h2d_bytes
    if policy in ("planned", "planned-moves", "reactive"):
        assert found.timeline is not None
        assert max(level.resident for level in found.timeline.levels) <= 20


def test_a_limit_below_what_an_operation_needs_moves_more_than_one_above() -> None:
    none, half, whole = (told(GPU, 1.0, limit=limit) for limit in (0, 15, 20))
    assert none.d2h_bytes is not None
    assert half.d2h_bytes is not None
    assert whole.d2h_bytes is not None
    assert none.d2h_bytes >= half.d2h_bytes >= whole.d2h_bytes > 0


def test_a_device_without_room_for_an_operation_is_no_limit_of_0() -> None:
    for limit in (None, 0):
        found = forecast(step(1.0), holding(19), UNMEASURED, items=1, limit=limit)
        assert not found.fits_with
        assert "alone needs 20 B of the device's 19 B" in found.advice


def test_nothing_is_told_of_a_step_that_does_not_fit() -> None:
    operation = forecast(step(1.0), holding(19), UNMEASURED, items=1)
    host = forecast(step(1.0), holding(22, host_bytes=5), UNMEASURED, items=1)
    stock = forecast(step(1.0), holding(22), UNMEASURED, items=1, policy="none")
    for found, why in ((operation, "alone needs"), (host, "room below the device"), (stock, "without LMS")):
        assert why in found.advice
        assert not found.fits_with
        assert [name for name in SIMULATED if getattr(found, name) is not None] == []
        assert found.step_s_unlimited > found.ideal_step_s * 0.999


def test_where_nothing_had_to_move_the_bytes_are_0_and_speeds_unknown() -> None:
    found = told(GPU, 1.0, limit=None)
    assert found.fits_without
    assert found.d2h_bytes == found.h2d_bytes == found.recomputed_bytes == found.host_bytes == found.disk_bytes == 0
    assert found.link_use == 0.0
    assert found.overhead == 0.0  # LMS costs the host nothing here
    assert found.d2h_bytes_per_s is found.h2d_bytes_per_s is found.timeline is None


def test_what_fits_without_lms_fits_with_it() -> None:
    """Though the largest workspace, where least is alive, and all pages at once would not."""
    trace = step(1.0, workspaces=(15, 0, 0, 0, 0))
    machine = holding(37, host_bytes=1)
    found = forecast(trace, machine, UNMEASURED, items=1)
    assert found.fits_without
    assert found.fits_with
    assert found.d2h_bytes == 0
    assert may_fit(trace, machine)


@pytest.mark.parametrize(("nbytes", "host_bytes", "fits"), [(19, 1000, False), (22, 5, False), (22, 1000, True)])
def test_what_may_fit_is_known_without_simulating_it(nbytes: int, host_bytes: int, fits: bool) -> None:
    machine = holding(nbytes, host_bytes)
    assert may_fit(step(1.0), machine) is fits
    assert forecast(step(1.0), machine, UNMEASURED, items=1).fits_with is fits
