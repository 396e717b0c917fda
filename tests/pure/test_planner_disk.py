"""Plans know what host memory holds, and what the disk behind it costs."""

from math import inf

import pytest
from made_traces import random_training, repeatable

from torch_lms.planner import make_plan, planned_with
from torch_lms.policy import Planned
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds, Simulator
from torch_lms.trace import Trace, demand_curve

LINKS = LinkSpeeds(d2h=100.0, h2d=100.0, disk_write=4.0, disk_read=4.0)


def step_s(trace: Trace, limit: int, host_bytes: int, known_bytes: float) -> float:
    """The third step by a plan that takes host memory for as large as ``known_bytes``."""
    tiers = {Tier.HOST: host_bytes, Tier.DISK: 1 << 60}
    plan = make_plan(trace, limit, {}, planned_with(LINKS, tiers)._replace(host_bytes=known_bytes))
    simulator = Simulator(trace, limit, tiers, LINKS, Planned(), plan)
    return [simulator.step() for _ in range(3)][-1].seconds


@pytest.mark.parametrize(("share", "gain"), [(0.05, 0.95), (0.2, 0.85), (0.4, 0.7)])
def test_where_host_memory_is_small_steps_are_shorter(share: float, gain: float) -> None:
    known_s, unknown_s = 0.0, 0.0
    for seed in range(6):
        trace = repeatable(random_training(seed))
        demand = demand_curve(trace).demand_bytes
        host_bytes = int(share * demand)
        unknown_s += step_s(trace, demand // 3, host_bytes, inf)
        known_s += step_s(trace, demand // 3, host_bytes, host_bytes)
    assert known_s < gain * unknown_s


def test_what_has_no_disk_behind_it_is_not_filled() -> None:
    speeds = planned_with(LINKS, {Tier.HOST: 100})
    assert speeds.host_bytes == 100
    assert max(speeds.disk_write, speeds.disk_read) < LINKS.disk_write


def test_of_a_processor_the_disk_is_the_next_tier() -> None:
    links = LinkSpeeds(4.0, 5.0, 4.0, 5.0, is_host_memory=True, overlap_penalty=1.0)
    speeds = planned_with(links, {Tier.DISK: 100})
    assert (speeds.d2h, speeds.h2d, speeds.overlap_penalty, speeds.host_bytes) == (4.0, 5.0, 1.0, inf)
