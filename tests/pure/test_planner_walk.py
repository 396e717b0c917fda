"""What a walk has away, and how: moved, or dropped and recomputed."""

import pytest
from made_traces import THERE_AND_BACK, Op, random_training, traced

from torch_lms.planner import Rules, Speeds, Walker, bound_seconds, gaps_of, make_plan
from torch_lms.planner.evictions import choose_dropped
from torch_lms.planner.headroom import Headroom
from torch_lms.policy import Plan, Planned, Policy, Reactive
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds, SimulatedStep, Simulator
from torch_lms.trace import Trace, demand_curve

SLOW, FAST = Speeds(1.0, 1.0), Speeds(1e9, 1e9)
IDLE = Op([0])


def simulated(trace: Trace, limit: int, speeds: Speeds, policy: Policy, plan: Plan | None = None) -> SimulatedStep:
    """The second step."""
    links = LinkSpeeds(speeds.d2h, speeds.h2d, speeds.d2h, speeds.h2d, overlap_penalty=speeds.overlap_penalty)
    simulator = Simulator(trace, limit, {Tier.HOST: 10**9}, links, policy, plan)
    simulator.step()
    step = simulator.step()
    simulator.pager.validate()
    return step


def forth_and_back(count: int, is_repeatable: bool = True) -> Trace:
    """A chain in which each page is made from the one before, and then each is needed in reverse order."""
    forth = [Op([n], [n + 1], is_repeatable=is_repeatable) for n in range(count)]
    return traced([*forth, *(Op([n]) for n in reversed(range(count)))])


def test_over_a_slow_link_it_is_recomputed_over_a_fast_one_it_moves() -> None:
    trace = forth_and_back(5)
    moved, dropped = Walker(trace, 40, SLOW).walk(Rules(1.0))
    assert not moved
    assert dropped
    moved, dropped = Walker(trace, 40, FAST).walk(Rules(1.0))
    assert moved
    assert not dropped


def test_what_cannot_be_recomputed_moves() -> None:
    moved, dropped = Walker(forth_and_back(5, is_repeatable=False), 40, SLOW).walk(Rules(1.0))
    assert moved
    assert not dropped


def test_a_copy_that_takes_the_programs_time_is_dearer_than_recomputing_it() -> None:
    """There is time enough to copy it, out and back a second each; to recompute it takes one."""
    idle = [Op([0, 3])] * 40
    trace = traced([Op([0], [1], is_repeatable=True), *idle, Op([3], [2]), *idle, Op([3, 2]), Op([0, 1])], (0, 3))
    beside, instead = (make_plan(trace, 30, {}, Speeds(10.0, 10.0, lost)) for lost in (0.0, 1.0))
    assert any(beside.evicts)
    assert not beside.recomputations
    assert not any(instead.evicts)
    assert [recomputed.page for recomputed in instead.recomputations] == [1]


def test_all_are_recomputed_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for three pages. Dropped pages are made to make others, and dropped once more."""
    monkeypatch.setattr("torch_lms.planner.plan._MAX_VARIANTS", 0)  # an anchor on the way would spare that
    trace = forth_and_back(6)
    plan = make_plan(trace, 30, {}, SLOW)
    step = simulated(trace, 30, SLOW, Planned(), plan)
    assert step.evicted_bytes == 0
    assert step.peak_bytes <= 30
    assert step.recomputed_bytes > 10 * len({recomputed.page for recomputed in plan.recomputations})


def test_a_walk_that_recomputes_time_and_again_is_given_up_and_the_next_begins_anew() -> None:
    """Each page is made from the first on, for each operation."""
    trace = forth_and_back(80)
    walker = Walker(trace, 30, SLOW)
    assert walker.walk(Rules(1.0)) is None
    assert walker.walk_on(Rules(1.0)) is None
    anchors = frozenset(range(2, 80, 2))
    assert walker.walk_on(Rules(1.0, anchors=anchors)) == Walker(trace, 30, SLOW).walk(Rules(1.0, anchors=anchors))
    assert make_plan(trace, 30, {}, SLOW).evicts


def test_an_anchor_is_not_recomputed() -> None:
    trace = forth_and_back(6)
    plain, anchored = (Walker(trace, 30, SLOW).walk(Rules(1.0, anchors=frozenset(pages))) for pages in ((), (2,)))
    assert 2 in {recomputed.page for _, recomputed in plain.dropped}
    assert 2 not in {recomputed.page for _, recomputed in anchored.dropped}
    assert anchored.dropped


def test_anchors_are_found_where_they_save_time(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = forth_and_back(8)
    found = simulated(trace, 30, SLOW, Planned(), make_plan(trace, 30, {}, SLOW))
    monkeypatch.setattr("torch_lms.planner.plan._MAX_VARIANTS", 0)
    plain = simulated(trace, 30, SLOW, Planned(), make_plan(trace, 30, {}, SLOW))
    assert found.seconds < plain.seconds


def first_or_second() -> Trace:
    """For page 3 one has to leave: page 1, which takes 3 s to make and is needed late, or page 2: 1 s, and soon."""
    trace = traced([Op([0], [1]), Op([0], [2]), Op([0], [3]), Op([2]), *[IDLE] * 20, Op([1])])
    return Trace(trace.pages, (trace.ops[0]._replace(seconds=3.0), *trace.ops[1:]))


@pytest.mark.parametrize(("focus", "page"), [(0.0, 1), (4.0, 2)])
def test_focus_is_on_when_most_is_over_the_limit(focus: float, page: int) -> None:
    choice = Walker(first_or_second(), 30, SLOW).walk(Rules(1.0, focus=focus))
    assert [gap.page for gap, _ in choice.dropped] == [page]


@pytest.mark.parametrize(("limit", "pages"), [(40, []), (30, [2]), (20, [1, 2])])
def test_dropped_is_what_takes_least_to_make(limit: int, pages: list[int]) -> None:
    trace = first_or_second()
    walker = Walker(trace, limit, SLOW)
    room = Headroom(trace, limit)
    gaps = choose_dropped(
        room, {gap: walker.seconds(recomputation) for gap, recomputation in walker.recomputations.items()}
    )
    assert [gap.page for gap in gaps] == pages
    assert room.worst is None


def test_what_takes_no_time_is_dropped_first() -> None:
    trace = first_or_second()
    gaps = {gap.page: gap for gap in gaps_of(trace)}
    assert choose_dropped(Headroom(trace, 30), {gaps[2]: 1e-6, gaps[1]: 0.0}) == [gaps[1]]


def test_what_a_walk_drops_is_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_lms.planner.plan._MAX_VARIANTS", 0)
    trace = forth_and_back(6)
    found = make_plan(trace, 30, {}, SLOW)
    monkeypatch.setattr("torch_lms.planner.plan.choose_dropped", lambda room, seconds: [])
    walked = make_plan(trace, 30, {}, SLOW)
    assert simulated(trace, 30, SLOW, Planned(), found).seconds < simulated(trace, 30, SLOW, Planned(), walked).seconds


def test_a_price_is_what_a_second_of_the_link_may_cost() -> None:
    """To make a page takes a second, to move it there and back two."""
    walker = Walker(traced([Op([0], [1]), Op([0], [2]), *[IDLE] * 40, Op([1]), Op([2])]), 25, Speeds(10.0, 10.0))
    cheap, dear = (walker.walk(Rules(price, is_punctual=False)) for price in (0.4, 0.6))
    assert cheap.moved
    assert not cheap.dropped
    assert dear.dropped
    assert not dear.moved


def test_what_would_not_arrive_in_time_is_recomputed() -> None:
    walker = Walker(traced([Op([0], [1]), Op([0], [2]), IDLE, Op([1]), Op([2])]), 25, Speeds(1.0, 1.0))
    assert walker.walk(Rules(0.01)).dropped
    assert not walker.walk(Rules(0.01, is_punctual=False)).dropped


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [2, 4])
@pytest.mark.parametrize("bytes_per_s", [5.0, 30.0, 1000.0])
@pytest.mark.parametrize("lost", [0.0, 1.0])
def test_a_plan_is_no_slower_than_none_and_keeps_the_limit(
    seed: int, share: int, bytes_per_s: float, lost: float
) -> None:
    trace = random_training(seed)
    trace = Trace(trace.pages, tuple(op._replace(is_repeatable=op.name == "forward") for op in trace.ops))
    limit = demand_curve(trace).demand_bytes // share
    speeds = Speeds(bytes_per_s, bytes_per_s, lost)
    planned = simulated(trace, limit, speeds, Planned(), make_plan(trace, limit, {}, speeds))
    reactive = simulated(trace, limit, speeds, Reactive())
    assert planned.seconds <= reactive.seconds * 1.001
    assert planned.peak_bytes <= max(limit, trace.working_set_bytes)
    assert trace.seconds <= bound_seconds(trace, limit, speeds) <= planned.seconds * 1.001


def test_no_plan_copies_what_is_not_written_yet() -> None:
    """Page 1, written in the first second, must have left before the second operation: in 2 s, while one has passed."""
    ops = (op._replace(is_repeatable=False) for op in THERE_AND_BACK.ops)
    trace = Trace(THERE_AND_BACK.pages, tuple(ops))
    assert bound_seconds(trace, 20, Speeds(5.0, 10.0)) == pytest.approx(5 + 1)


def test_no_plan_makes_a_page_of_one_that_is_gone() -> None:
    """Page 2 is made from page 1, which dies before page 2 is needed: both operations have to be run again."""
    trace = traced([Op([0], [1]), Op([1], [2]), Op([0], [3, 4]), Op([2])])
    assert bound_seconds(trace, 30, Speeds(1e-6, 1e-6)) == pytest.approx(4 + 2)


def test_the_same_step_gives_the_same_plan() -> None:
    trace = random_training(3)
    plans = [make_plan(trace, 100, {}, Speeds(30.0, 30.0)) for _ in range(2)]
    assert plans[0] == plans[1]


def test_what_nobody_needs_is_dropped_and_not_recomputed() -> None:
    trace = traced([*(Op([], [n]) for n in range(1, 7)), IDLE])
    trace = Trace(tuple(page._replace(dead=max(page.dead, 6)) for page in trace.pages), trace.ops)
    plan = make_plan(trace, 30, {0: 0}, SLOW)
    step = simulated(trace, 30, SLOW, Planned(), plan)
    assert (step.evicted_bytes, step.recomputed_bytes, step.peak_bytes) == (0, 0, 30)
    assert step.seconds == len(trace.ops)
