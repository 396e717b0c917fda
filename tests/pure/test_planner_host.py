"""A host that runs ahead of its device needs time for each action: plans count that."""

import pytest
from made_traces import Op, random_training, repeatable, traced

from torch_lms.planner import Speeds, gaps_of, make_plan
from torch_lms.planner.gaps import actions_of
from torch_lms.policy import Plan, Planned
from torch_lms.residency import Tier
from torch_lms.sim import HostWork, LinkSpeeds, Simulator
from torch_lms.trace import Trace, demand_curve

_LAUNCH_S = 0.1
_SMALL, _LARGE = 40, 4


def small_or_large() -> Trace:
    """Four pages of 101 bytes and 40 of 10, which nobody needs for a while. None can be recomputed."""
    idle = range(1, 1 + _SMALL + _LARGE)
    ops = [
        *(Op([0], [page], is_repeatable=False) for page in idle),
        *(Op([0], is_repeatable=False) for _ in range(40)),
        *(Op([page], is_repeatable=False) for page in idle),
    ]
    trace = traced(ops)
    pages = [page._replace(nbytes=101 if 0 < number <= _LARGE else 10) for number, page in enumerate(trace.pages)]
    return Trace(
        tuple(pages), tuple(op._replace(new_bytes=sum(pages[page].nbytes for page in op.creates)) for op in trace.ops)
    )


def host_bound_s(plan: Plan, speeds: Speeds) -> float:
    """The third step by ``plan`` where the host takes its time."""
    host = HostWork(speeds.launch_s, 0.0, speeds.action_s, is_ahead=True)
    links = LinkSpeeds(speeds.d2h, speeds.h2d, speeds.disk_write, speeds.disk_read)
    simulator = Simulator(plan.trace, plan.limit, {Tier.HOST: 1 << 40}, links, Planned(), plan, host=host)
    return [simulator.step().seconds for _ in range(3)][-1]


def moved(plan: Plan) -> list[int]:
    return [plan.trace.pages[page].nbytes for pages in plan.evicts for page in pages]


def test_fewer_and_larger_pages_move_where_the_host_would_be_late() -> None:
    trace = small_or_large()
    limit = demand_curve(trace).demand_bytes - 400
    free = Speeds(1e4, 1e4, launch_s=_LAUNCH_S)
    busy = free._replace(action_s=5.0)
    by_bytes, by_actions = (make_plan(trace, limit, {}, speeds) for speeds in (free, busy))
    assert len(moved(by_bytes)) > 2 * len(moved(by_actions))
    assert moved(by_actions).count(101) == _LARGE
    assert host_bound_s(by_actions, busy) < 0.5 * host_bound_s(by_bytes, busy)


def test_a_host_that_has_time_changes_no_plan() -> None:
    trace = small_or_large()
    limit = demand_curve(trace).demand_bytes - 400
    busy = Speeds(1e4, 1e4, launch_s=1e-6, action_s=1e-6)
    plan, unaware = (make_plan(trace, limit, {}, speeds) for speeds in (busy, busy._replace(action_s=0.0)))
    assert moved(plan) == moved(unaware)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [2, 4])
def test_no_step_is_slower_for_what_the_host_is_known_to_do(seed: int, share: int) -> None:
    trace = repeatable(random_training(seed))
    limit = demand_curve(trace).demand_bytes // share
    busy = Speeds(100.0, 100.0, launch_s=_LAUNCH_S, action_s=0.5)
    unaware = make_plan(trace, limit, {}, busy._replace(action_s=0.0))
    assert host_bound_s(make_plan(trace, limit, {}, busy), busy) <= 1.02 * host_bound_s(unaware, busy)


def test_actions_of_an_absence() -> None:
    trace = traced([Op([0]), Op([0, 1], [2], writes=[1]), Op([0]), Op([0], [3]), Op([2]), Op([0, 1, 3])], (0, 1))
    found = {(gap.page, gap.after): actions_of(gap) for gap in gaps_of(trace)}
    assert found[2, 1] == 5  # copied down, freed, fetched
    assert found[0, 3] == 3  # only read: freed, and fetched
    assert found[1, 1] == 5
