"""A rehearsal gives the seconds and the bytes of the simulator, in which the pager itself decides."""

from math import inf

import pytest
from made_traces import Op, handing_on, random_training, repeatable, traced

from torch_lms.planner import Rules, Speeds, Walker, bound_seconds, choose, gaps_of, make_plan
from torch_lms.planner.headroom import Headroom
from torch_lms.planner.plan import plan_for
from torch_lms.planner.rehearsal import Rehearsed, Stage
from torch_lms.planner.walk import Choice
from torch_lms.policy import Plan, Planned
from torch_lms.residency import Tier
from torch_lms.sim import HostWork, LinkSpeeds, Simulator
from torch_lms.trace import Trace, demand_curve


def simulated(plan: Plan, speeds: Speeds) -> Rehearsed:
    """The second step."""
    links = LinkSpeeds(
        speeds.d2h, speeds.h2d, speeds.disk_write, speeds.disk_read, overlap_penalty=speeds.overlap_penalty
    )
    tiers = {Tier.HOST: int(min(speeds.host_bytes, 1 << 60)), Tier.DISK: 1 << 60}
    host = HostWork(speeds.launch_s, 0.0, speeds.action_s, is_ahead=True) if speeds.launch_s else HostWork()
    simulator = Simulator(plan.trace, plan.limit, tiers, links, Planned(), plan, host=host)
    simulator.step()
    step = simulator.step()
    return Rehearsed(step.seconds, step.peak_bytes, step.evicted_bytes, step.fetched_bytes)


def plans(trace: Trace, limit: int, speeds: Speeds) -> list[Plan]:
    """What moves least, and what walks by some rules choose."""
    walker = Walker(trace, limit, speeds)
    rules = (Rules(0.1), Rules(1.0, is_punctual=False), Rules(0.03, counts_inputs=True, focus=4.0))
    choices = [Choice(choose(trace, limit), []), *map(walker.walk, rules)]
    return [plan_for(trace, limit, choice, {}, speeds, Headroom(trace, limit)) for choice in choices]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [2, 3, 6])
@pytest.mark.parametrize("bytes_per_s", [3.0, 30.0, 1000.0])
@pytest.mark.parametrize(
    ("lost", "host_share", "host_s"),
    [
        *((0.0, 0.0, 0.0), (0.0, 0.2, 0.0), (0.0, 0.5, 0.0), (0.0, inf, 0.0), (1.0, inf, 0.0)),
        *((0.0, 0.2, 0.3), (0.0, inf, 0.3), (0.0, inf, 2.0)),
    ],
)
def test_it_is_as_simulated(
    seed: int, share: int, bytes_per_s: float, lost: float, host_share: float, host_s: float
) -> None:
    trace = repeatable(random_training(seed))
    demand = demand_curve(trace).demand_bytes
    limit = demand // share
    disk = (bytes_per_s / 4, bytes_per_s / 3)
    host = (host_s, host_s / 2)  # for a launch, and for an action
    speeds = Speeds(bytes_per_s, 1.5 * bytes_per_s, lost, host_share * demand, *disk, 0.0, *host)
    stage = Stage(trace, limit, speeds)
    for plan in plans(trace, limit, speeds):
        rehearsed, expected = stage.rehearse(plan, inf), simulated(plan, speeds)
        assert rehearsed is not None
        assert rehearsed.seconds == pytest.approx(expected.seconds, rel=1e-9)
        assert rehearsed[1:] == expected[1:]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [1.5, 2, 3])
@pytest.mark.parametrize("bytes_per_s", [3.0, 30.0, 1000.0])
def test_a_page_may_become_one_that_is_needed_later_in_a_step(seed: int, share: float, bytes_per_s: float) -> None:
    trace = handing_on(seed)
    limit = int(demand_curve(trace).demand_bytes / share)
    speeds = Speeds(bytes_per_s, 1.5 * bytes_per_s)
    planned = make_plan(trace, limit, {}, speeds)
    for plan in (*plans(trace, limit, speeds), planned):
        rehearsed = Stage(trace, limit, speeds).rehearse(plan, inf)
        assert rehearsed is not None
        assert rehearsed.seconds == pytest.approx(simulated(plan, speeds).seconds, rel=1e-9)
    assert trace.seconds <= bound_seconds(trace, limit, speeds) <= simulated(planned, speeds).seconds * 1.001


def test_what_the_next_step_needs_is_fetched_by_the_number_that_it_has_there() -> None:
    """However fast the link is: from the operation before on."""
    trace = handing_on(0)
    gap = next(gap for gap in gaps_of(trace) if gap.wraps and gap.before > gap.after)
    successor = trace.pages[gap.page].successor
    speeds = Speeds(1e12, 1e12)
    plan = plan_for(trace, 1 << 30, Choice([gap], []), {}, speeds, Headroom(trace, 1 << 30))
    assert [at for at, pages in enumerate(plan.fetches) if pages == (successor,)] == [gap.before - 1]
    assert sum(map(len, plan.fetches)) == 1


def test_it_is_given_up_once_it_takes_too_long() -> None:
    trace = repeatable(random_training(1))
    limit = demand_curve(trace).demand_bytes // 3
    stage = Stage(trace, limit, Speeds(30.0, 30.0))
    plan = plans(trace, limit, stage.speeds)[0]
    whole = stage.rehearse(plan, inf)
    assert whole is not None
    assert stage.rehearse(plan, whole.seconds * 1.001) == whole
    assert stage.rehearse(plan, whole.seconds * 0.5) is None


def test_what_repeating_costs_is_counted_and_half_of_it_for_what_is_only_recorded() -> None:
    made = traced([Op([0], [1]), Op([0], [2]), Op([4], [3]), Op([4], [5]), Op([3, 5]), Op([2])], constants=(0, 4))
    unneeded = made.pages[1]._replace(dead=5)
    trace, limit = Trace((made.pages[0], unneeded, *made.pages[2:]), made.ops), 40
    free = Speeds(1e12, 1e12)
    found = Walker(trace, limit, free).recomputations.items()
    dropped = [(gap, recomputation) for gap, recomputation in found if (gap.page, gap.before) in {(1, -1), (2, 5)}]
    assert len(dropped) == 2
    plan = plan_for(trace, limit, Choice([], dropped), {}, free, Headroom(trace, limit))
    without, counted = (Stage(trace, limit, one).rehearse(plan, inf) for one in (free, free._replace(repeat_s=0.5)))
    assert without is not None
    assert counted is not None
    assert counted.seconds - without.seconds == pytest.approx(0.5 * 1 + 0.5 * 2)


def test_what_costs_more_to_repeat_than_to_move_is_moved() -> None:
    trace = repeatable(random_training(1))
    limit = demand_curve(trace).demand_bytes // 3
    slow = Speeds(3.0, 3.0)
    assert make_plan(trace, limit, {}, slow).recomputations
    assert not make_plan(trace, limit, {}, slow._replace(repeat_s=1e6)).recomputations
