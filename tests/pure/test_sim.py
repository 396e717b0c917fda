"""The clock of the simulator, against sums done by hand."""

import pytest
from made_traces import THERE_AND_BACK, Op, random_training, traced

from torch_lms.planner import Speeds, make_plan
from torch_lms.policy import Planned, Reactive
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds, Simulator
from torch_lms.timeline import Lane
from torch_lms.trace import Trace, demand_curve

AMPLE = {Tier.HOST: 10**6}


def simulator(
    trace: Trace, limit: int, links: LinkSpeeds, tiers: dict[Tier, int] = AMPLE, **options: bool
) -> Simulator:
    return Simulator(trace, limit, tiers, links, Reactive(), **options)


def test_with_room_for_all_nothing_moves() -> None:
    step = simulator(THERE_AND_BACK, 30, LinkSpeeds(1, 1, 1, 1)).step()
    assert (step.seconds, step.stall_s, step.evicted_bytes, step.fetched_bytes) == (5, 0, 0, 0)
    assert step.peak_bytes == 30


def test_who_needs_room_waits_for_the_copy_and_who_needs_the_page_for_its_return() -> None:
    """Out before operation 1 in 2 s, back before operation 4 in 1 s, when page 2 is dead and needs not leave."""
    step = simulator(THERE_AND_BACK, 20, LinkSpeeds(d2h=5, h2d=10, disk_write=1, disk_read=1)).step()
    assert step.evicted_bytes == step.fetched_bytes == 10
    assert step.stall_s == pytest.approx(3)
    assert step.seconds == pytest.approx(5 + 3)
    assert (step.peak_bytes, step.host_bytes, step.disk_bytes) == (20, 10, 0)


@pytest.mark.parametrize("lost", [0.25, 1.0])
def test_who_waits_for_a_copy_loses_no_more_by_making_it(lost: float) -> None:
    links = LinkSpeeds(d2h=5, h2d=10, disk_write=1, disk_read=1, overlap_penalty=lost)
    step = simulator(THERE_AND_BACK, 20, links).step()
    assert (step.stall_s, step.copying_s) == (pytest.approx(3 * (1 - lost)), pytest.approx(3 * lost))
    assert step.seconds == pytest.approx(5 + 3)


def test_a_copy_beside_operations_takes_its_share_of_their_time() -> None:
    idle = [Op([0, 3])] * 40
    trace = traced([Op([0], [1]), *idle, Op([3], [2]), *idle, Op([3, 2]), *idle, Op([0, 1])], (0, 3))
    for lost in (0.0, 0.5):
        links = LinkSpeeds(10, 10, 10, 10, overlap_penalty=lost)
        plan = make_plan(trace, 30, {}, Speeds(10.0, 10.0))
        simulated = Simulator(trace, 30, AMPLE, links, Planned(), plan)
        simulated.step()
        step = simulated.step()
        copies = [span for span in step.timeline.spans if span.lane in (Lane.D2H, Lane.H2D)]
        assert len(copies) == 2
        assert (step.stall_s, step.copying_s) == (pytest.approx(0), pytest.approx(2 * lost))
        assert step.seconds == pytest.approx(124 + 2 * lost)


def test_every_copy_begins_late() -> None:
    links = LinkSpeeds(d2h=5, h2d=10, disk_write=1, disk_read=1, latency_s=0.25)
    assert simulator(THERE_AND_BACK, 20, links).step().stall_s == pytest.approx(3.5)


def test_beyond_host_memory_is_the_disk() -> None:
    """2 s to the host and 4 s to the disk; 2 s from there and 1 s up."""
    links = LinkSpeeds(d2h=5, h2d=10, disk_write=2.5, disk_read=5)
    step = simulator(THERE_AND_BACK, 20, links, {Tier.HOST: 5, Tier.DISK: 100}).step()
    assert step.stall_s == pytest.approx(2 + 4 + 2 + 1)
    assert (step.host_bytes, step.disk_bytes) == (0, 10)


def test_where_memory_is_the_hosts_the_next_tier_is_the_disk() -> None:
    links = LinkSpeeds(d2h=1, h2d=1, disk_write=2.5, disk_read=5, is_host_memory=True)
    step = simulator(THERE_AND_BACK, 20, links, {Tier.DISK: 100}).step()
    assert step.stall_s == pytest.approx(4 + 2)


def test_a_copy_is_of_no_use_to_who_does_not_keep_it() -> None:
    """Page 1 is only read, so it may leave a second time for nothing; unless its copy was given up."""
    trace = traced([Op([0], [1]), Op([0], [2]), Op([2]), Op([1]), Op([0], [3]), Op([3]), Op([1])])
    links = LinkSpeeds(10, 10, 10, 10)
    assert simulator(trace, 20, links).step().evicted_bytes == 10
    assert simulator(trace, 20, links, keeps_copies=False).step().evicted_bytes == 20


def test_copies_are_made_beside_operations() -> None:
    """The plan has page 1 leave during operation 1 and come back during operation 3."""
    trace = traced([Op([0], [1]), Op([0]), Op([0], [2]), Op([2]), Op([0]), Op([1])])
    plan = make_plan(trace, 20, {}, Speeds(10.0, 10.0))
    links = LinkSpeeds(10, 10, 10, 10)
    planned = Simulator(trace, 20, AMPLE, links, Planned(), plan)
    steps = [planned.step() for _ in range(2)]
    assert [step.evicted_bytes for step in steps] == [10, 10]
    assert [step.stall_s for step in steps] == [0, 0]
    blocking = Simulator(trace, 20, AMPLE, links, Planned(), plan, is_blocking=True).step()
    assert blocking.stall_s == pytest.approx(2)


def test_the_timeline_adds_up() -> None:
    step = simulator(THERE_AND_BACK, 20, LinkSpeeds(5, 10, 1, 1)).step()
    spent = sum(span.end_s - span.start_s for span in step.timeline.spans if span.lane is Lane.COMPUTE)
    assert spent == pytest.approx(step.seconds)
    moved = {span.lane: span.nbytes for span in step.timeline.spans if span.nbytes}
    assert moved == {Lane.D2H: 10, Lane.H2D: 10}
    assert len(step.timeline.levels) == 5


@pytest.mark.parametrize("seed", range(8))
def test_every_step_is_like_the_one_before(seed: int) -> None:
    """Deterministic, and in the long run no page is lost or left behind."""
    trace = random_training(seed)
    limit = demand_curve(trace).demand_bytes // 3
    found = []
    for _ in range(2):
        simulated = simulator(trace, limit, LinkSpeeds(20, 20, 1, 1))
        found.append([simulated.step() for _ in range(4)])
        simulated.pager.validate()
        assert len(simulated.pager.book) == sum(page.successor >= 0 for page in trace.pages)
    assert found[0] == found[1]
    assert found[0][2].evicted_bytes == found[0][3].evicted_bytes
