"""The host's clock beside the device's, against sums done by hand."""

import pytest
from made_traces import THERE_AND_BACK

from torch_lms.policy import Reactive
from torch_lms.residency import Tier
from torch_lms.sim import HostWork, LinkSpeeds, Simulator, paced
from torch_lms.sim.backend import LaneBackend
from torch_lms.sim.clocks import _MAX_QUEUED, KERNEL_S, Clocks
from torch_lms.trace import Trace, TracedOp, Work

AMPLE = {Tier.HOST: 10**6}
LINK = LinkSpeeds(d2h=10, h2d=10, disk_write=10, disk_read=10)


def op(seconds: float, launches: int = 1, name: str = "op") -> TracedOp:
    """An operation on no pages, whose kernels take a device so long."""
    return TracedOp(name, (), (), (), 0, seconds, work=Work("copy", "float32", 0, 0, launches=launches))


def clocks(**work: float) -> Clocks:
    """Of a host that runs ahead."""
    return Clocks(HostWork(**work, is_ahead=True))


def step(ops: list[TracedOp], **work: float) -> tuple[float, float]:
    """Seconds of one such step of many, and those among them in which the device waits for the host."""
    found = paced(Trace((), tuple(ops)), HostWork(**work, is_ahead=True))
    return found.trace.seconds, found.host_wait_s


def test_a_host_that_is_ahead_takes_no_time() -> None:
    assert step([op(1.0), op(2.0)], launch_s=0.5, op_s=0.25) == (pytest.approx(3.0), 0.0)


def test_a_device_that_is_faster_waits_for_the_host() -> None:
    assert step([op(0.1), op(0.2)], launch_s=0.5, op_s=0.25) == (pytest.approx(1.5), pytest.approx(1.2))


def test_a_long_kernel_hides_the_launches_of_those_after_it() -> None:
    """Nine launches of 0.1 s: the kernel of 1 s covers them, one of 0.5 s covers five."""
    assert step([op(1.0), *[op(KERNEL_S)] * 9], launch_s=0.1)[0] == pytest.approx(1.0, rel=1e-3)
    assert step([op(0.5), *[op(KERNEL_S)] * 9], launch_s=0.1)[0] == pytest.approx(1.0, rel=1e-3)


def test_small_operations_are_launched_one_by_one() -> None:
    """Of ten launches, 0.1 s each, the first kernel takes a second, and the last small one comes right after."""
    found = clocks(launch_s=0.1)
    found.run(op(1.0 + 9 * KERNEL_S, launches=10))
    assert found.now_s == pytest.approx(0.1 + 1.0 + 9 * KERNEL_S)
    assert found.host_s == pytest.approx(1.0)
    assert found.host_wait_s == pytest.approx(0.1)
    assert found.host_work_s == pytest.approx(1.0)

    found = clocks(launch_s=0.1)
    found.run(op(0.3 + 9 * KERNEL_S, launches=10))
    assert found.now_s == pytest.approx(1.0 + KERNEL_S)
    assert found.host_wait_s == pytest.approx(1.0 + KERNEL_S - 0.3 - 9 * KERNEL_S)


def test_the_host_is_ahead_by_what_the_queue_holds() -> None:
    found = clocks(launch_s=1e-3)
    for _ in range(_MAX_QUEUED):
        found.run(op(1.0))
    assert found.host_s == pytest.approx(_MAX_QUEUED * 1e-3)
    found.run(op(1.0))  # there is room when the first is through, at 1.001 s
    assert found.host_s == pytest.approx((_MAX_QUEUED + 1) * 1e-3)
    found.run(op(1.0))
    assert found.host_s == pytest.approx(2.001)
    assert found.host_wait_s == pytest.approx(1e-3)


def test_what_the_host_reads_it_waits_for() -> None:
    for name, host_s in (("aten::add", 0.1), ("aten::nonzero", 1.1)):
        found = clocks(launch_s=0.1)
        found.run(op(1.0, name=name))
        assert found.host_s == pytest.approx(host_s)


def test_a_device_waits_for_a_copy_and_its_host_does_not() -> None:
    found = clocks(launch_s=0.1)
    found.run(op(1.0))
    assert found.wait_until(3.0) == pytest.approx(1.9)
    assert (found.now_s, found.host_s) == (pytest.approx(3.0), pytest.approx(0.1))
    assert found.host_waits_until(2.0) == 0.0
    assert (found.now_s, found.host_s) == (pytest.approx(3.0), pytest.approx(2.0))


def test_where_the_host_computes_there_is_one_clock() -> None:
    found = Clocks(HostWork(op_s=0.5, action_s=0.25))
    found.run(op(1.0, launches=2))
    found.act()
    assert found.now_s == found.host_s == pytest.approx(1.0 + 2 * 0.5 + 0.25)
    assert found.host_wait_s == found.host_work_s == pytest.approx(1.25)


# -- with pages that move --------------------------------------------------------------------------------------------


def reactive(host: HostWork, links: LinkSpeeds = LINK, tiers: dict[Tier, int] = AMPLE) -> Simulator:
    return Simulator(THERE_AND_BACK, 20, tiers, links, Reactive(), host=host)


def test_a_host_without_work_changes_nothing() -> None:
    """But for the stall of a copy up: the host asks for it while the device is still at work."""
    alone, ahead = (reactive(HostWork(is_ahead=is_ahead)).step() for is_ahead in (False, True))
    assert (ahead.seconds, ahead.stall_s) == (alone.seconds, alone.stall_s) == (pytest.approx(7), pytest.approx(2))
    assert ahead.host_wait_s == ahead.host_work_s == 0.0


def test_a_step_bound_by_the_host_hides_its_copies() -> None:
    """Five launches of 10 s, and five actions of 1 s: one page leaves and comes back, in 1 s each way."""
    host = HostWork(launch_s=10.0, action_s=1.0, is_ahead=True)
    step = reactive(host).step()
    assert step.host_work_s == pytest.approx(5 * 10 + 5 * 1)
    assert step.evicted_bytes == step.fetched_bytes == 10
    assert step.seconds == pytest.approx(step.host_wait_s + step.stall_s + 5)
    assert step.host_wait_s + step.stall_s == pytest.approx(50, abs=2)


def test_the_host_waits_for_the_disk() -> None:
    """Page 1 leaves after operation 0, in 2 s to the host and 4 s to the disk; until then the host launches nothing. It
    then runs ahead, and reads the page back in 2 s beside operations 1 to 3. The copy up takes 1 s, in the way.
    """
    tiers = {Tier.HOST: 5, Tier.DISK: 100}
    links = LinkSpeeds(d2h=5, h2d=10, disk_write=2.5, disk_read=5)
    simulated = reactive(HostWork(launch_s=1e-3, is_ahead=True), links, tiers)
    step = simulated.step()
    assert step.disk_bytes == 10
    assert step.stall_s == pytest.approx(2 + 4 + 1, abs=1e-2)
    assert simulated._backend.clocks.host_s == pytest.approx(1 + 2 + 4 + 2, abs=1e-2)


def test_what_has_ended_the_host_sees_by_its_own_time() -> None:
    """A copy of 1 s, beside an operation of 5 s: a host that is ahead of the operation does not know its end."""
    for host, landed in ((HostWork(), [0]), (HostWork(launch_s=1e-3, is_ahead=True), [])):
        backend = LaneBackend(THERE_AND_BACK, AMPLE, LINK, is_blocking=False, host=host)
        backend._lanes.evict(0, 10, Tier.HOST, backend.now_s)
        backend.run(op(5.0))
        assert backend.now_s >= 5.0
        assert backend.landed() == landed
