"""When a plan is ordered, and what becomes of it when it is there."""

import logging
from dataclasses import replace
from itertools import count

import pytest

from torch_lms.engine import EndedStep, MadePlan, PlanCache, PlanOrder, Speeds, StepRecord
from torch_lms.planner import make_plan
from torch_lms.policy import PlanCursor
from torch_lms.trace import Living

IDS = count(100)
LIMIT = 120
OPS = 3
PLANNING_S = OPS * 1.5e-3
HOST_OP_S = 1e-4


class Later:
    """A planner whose plans are there when the test says so."""

    spares_program = True
    keeps_plans = False
    improves = False

    def __init__(self) -> None:
        self.orders: list[PlanOrder] = []
        self.made: list[MadePlan] = []
        self.is_ready = self.is_closed = False

    @property
    def has_made(self) -> bool:
        return bool(self.made)

    def get_ready(self) -> None:
        self.is_ready = True

    def order(self, order: PlanOrder) -> None:
        self.orders.append(order)

    def take(self) -> list[MadePlan]:
        made, self.made = self.made, []
        return made

    def wait(self) -> None:
        self.finish()

    def close(self) -> None:
        self.is_closed = True

    def finish(self, failure: str = "") -> None:
        for order in self.orders:
            plan = None if failure else make_plan(order.trace, order.limit, order.ids, order.speeds)
            self.made.append(MadePlan(order, plan, 0.25, 0.0, 0.5, failure))
        self.orders = []


def living(*ids: int) -> list[Living]:
    return [Living(page, 50) for page in ids]


def record(pages: list[Living], *uses: int, op_s: float = 1.0, first_s: float = 0.0) -> StepRecord:
    """A step whose operations use one page after the other. The first takes ``first_s`` longer than the others."""
    found = StepRecord(pages)
    for number, page in enumerate(uses):
        found.begins(f"op{number}", (page,), 0, False, number * op_s + (first_s if number else 0.0))
        found.ends((page,))
    found.finish(len(uses) * op_s + first_s)
    return found


def ended(
    lost_s: float, done: PlanCursor | None = None, pages: tuple[int, ...] = (1, 2, 3), op_s: float = 1.0
) -> EndedStep:
    """A step that lost so much, with what having no plan cost the host."""
    copies_s = lost_s if done is not None else max(0.0, lost_s - len(pages) * HOST_OP_S)
    step = record(living(*pages), *pages, op_s=op_s)
    if done is not None and not done.is_done:
        step.retrace(done)
    return EndedStep(step, done, LIMIT, round(copies_s * 1e9), 0, 50 * len(set(pages)), Speeds(1e9, 1e9))


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def cache(later: Later) -> PlanCache:
    return PlanCache(later, float)


def test_what_comes_once_is_not_planned(cache: PlanCache, later: Later) -> None:
    cache.end_step(ended(100.0))
    assert later.is_ready
    assert not later.orders


def test_it_is_planned_once_it_has_lost_what_planning_costs(cache: PlanCache, later: Later) -> None:
    for _ in range(4):
        cache.end_step(ended(PLANNING_S / 4.5))
        assert not later.orders
    cache.end_step(ended(PLANNING_S / 4.5))
    assert len(later.orders) == 1


def test_what_planning_took_is_expected_of_the_next(cache: PlanCache, later: Later) -> None:
    for _ in range(2):
        cache.end_step(ended(1.0))
    later.finish()  # 0.25 s
    assert cache.has_news
    cache.begin_step(living(1, 2, 3), LIMIT)
    assert cache.planning_s == 0.25
    for _ in range(4):
        cache.end_step(ended(0.06, pages=(1, 3, 2, 2)))
    assert not later.orders, "four operations: 0.33 s"
    for _ in range(2):
        cache.end_step(ended(0.06, pages=(1, 3, 2, 2)))
    assert len(later.orders) == 1


def test_steps_go_on_while_it_is_made_and_it_is_ordered_once(cache: PlanCache, later: Later) -> None:
    for _ in range(5):
        cache.end_step(ended(1.0))
        assert cache.begin_step(living(1, 2, 3), LIMIT) == []
    assert len(later.orders) == 1


def test_pages_that_died_meanwhile_are_not_known(cache: PlanCache, later: Later) -> None:
    """Page 2 died, and page 9 took its place: it is bound when an operation uses it."""
    for _ in range(2):
        cache.end_step(ended(1.0))
    later.finish()
    (cursor,) = cache.begin_step(living(1, 9, 3), LIMIT)
    assert set(cursor.plan.known) == {1, 2, 3}
    for number, page in enumerate((1, 9, 3)):
        cursor.op_begins(f"op{number}", (page,))
    assert cursor.is_done


def test_many_operations_are_planned_though_their_copies_are_small(cache: PlanCache, later: Later) -> None:
    """What they cost the host without a plan is more than planning takes."""
    for _ in range(16):
        assert not later.orders
        cache.end_step(ended(0.0))
    assert len(later.orders) == 1


def followed(cache: PlanCache) -> PlanCursor:
    (cursor,) = cache.begin_step(living(1, 2, 3), LIMIT)
    return cursor


@pytest.fixture
def is_hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Later, "improves", True)


@pytest.mark.usefixtures("is_hasty")
def test_a_quick_plan_comes_first_and_a_better_one_for_the_times_of_a_step_that_followed_it(
    cache: PlanCache, later: Later
) -> None:
    for _ in range(2):
        assert not later.orders
        cache.end_step(ended(0.16 * PLANNING_S))  # a third of what planning costs is lost
    (order,) = later.orders
    assert order.is_first
    later.finish()
    for _ in range(2):
        assert not later.orders
        cache.end_step(ended(0.6 * PLANNING_S, followed(cache), op_s=0.25))
    (order,) = later.orders
    assert not order.is_first
    assert order.trace.seconds == OPS * 0.25
    later.finish()
    for _ in range(4):
        cache.end_step(ended(10.0, followed(cache)))
        assert not later.orders, "there is no better one"
    assert (cache.planned_steps, cache.replans) == (6, 1)


@pytest.mark.usefixtures("is_hasty")
def test_an_operation_took_the_shorter_of_its_times(cache: PlanCache, later: Later) -> None:
    """A device that waited for its host in the second step did not take longer for its work."""
    cache.end_step(ended(1.0))
    cache.end_step(ended(1.0))
    later.finish()
    cursor = followed(cache)
    slow_first = record(living(1, 2, 3), 1, 2, 3, op_s=0.5, first_s=8.5)
    cache.end_step(replace(ended(10.0, cursor), record=slow_first))
    (order,) = later.orders
    assert [op.seconds for op in order.trace.ops] == [1.0, 0.5, 0.5]


@pytest.mark.usefixtures("is_hasty")
def test_a_plan_that_was_given_up_is_not_followed_by_a_quick_one(cache: PlanCache, later: Later) -> None:
    cache.end_step(ended(1.0))
    cache.end_step(ended(1.0))
    later.finish()
    cache.end_step(ended(1.0, followed(cache)))
    later.finish()
    assert cache.begin_step(living(1, 2, 3), LIMIT)
    assert cache.begin_step(living(1, 2, 3), LIMIT // 2) == []
    cache.end_step(ended(1.0))
    assert [order.is_first for order in later.orders] == [False]


def test_a_plan_that_had_to_be_given_up_must_pay_twice(cache: PlanCache, later: Later) -> None:
    for _ in range(2):
        cache.end_step(ended(1.0))
    later.finish()
    assert cache.begin_step(living(1, 2, 3), LIMIT)
    assert cache.begin_step(living(1, 2, 3), LIMIT // 2) == [], "the limit has changed"
    cache.end_step(ended(0.3))
    assert not later.orders, "planning takes 0.25 s, so it must lose 0.5"
    cache.end_step(ended(0.3))
    assert later.orders


def test_a_failure_is_told_once_and_ends_planning(
    cache: PlanCache, later: Later, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        cache.end_step(ended(1.0))
        cache.end_step(ended(1.0, pages=(3, 2, 1)))
    later.finish("it broke")
    with caplog.at_level(logging.WARNING, "torch_lms"):
        assert cache.begin_step(living(1, 2, 3), LIMIT) == []
    assert [record.message.count("it broke") for record in caplog.records] == [1]
    cache.end_step(ended(1.0))
    assert not later.orders


def test_a_cursor_retraces_what_was_recorded(cache: PlanCache, later: Later) -> None:
    for _ in range(2):
        cache.end_step(ended(1.0))
    later.finish()
    (cursor,) = cache.begin_step(living(1, 2, 3), LIMIT)
    record(living(1, 2, 3), 1, 2).retrace(cursor)
    assert (cursor.position, cursor.has_diverged) == (1, False)
    record(living(1, 2, 3), 1, 3).retrace(other := PlanCursor(cursor.plan, {1: 50, 2: 50, 3: 50}))
    assert other.has_diverged


def test_the_least_recently_followed_is_forgotten(
    cache: PlanCache, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_lms.engine.plan_cache._MAX_PLANS", 2)
    kinds = ((1, 2, 3), (1, 3), (1, 2, 3, 1))
    for pages in kinds:
        for _ in range(2):
            cache.end_step(ended(1.0, pages=pages))
        later.finish()
        cache.begin_step(living(1, 2, 3), LIMIT)
    assert len(cache.kinds) == 2
    assert [len(kind.plan.trace.ops) for kind in cache.kinds] == [4, 2]


def test_a_closed_cache_closes_its_planner(cache: PlanCache, later: Later) -> None:
    cache.close()
    assert later.is_closed


# -- steps that are like no other --------------------------------------------------------------------------------------


def of_length(ops: int, cursor: PlanCursor | None = None, lost_s: float = 1.0) -> EndedStep:
    """A step of so many operations, which follows ``cursor`` as far as it goes."""
    step = record(living(1), *[1] * ops)
    if cursor is not None:
        step.retrace(cursor)
    return EndedStep(step, cursor, LIMIT, round(lost_s * 1e9), 0, 50, Speeds(1e9, 1e9))


def test_the_longest_of_steps_that_are_like_no_other_is_planned(cache: PlanCache, later: Later) -> None:
    for ops in (5, 20, 7, 18, 6):
        cache.end_step(of_length(ops))
        assert not later.orders
    cache.end_step(of_length(19))
    (order,) = later.orders
    assert len(order.trace.ops) == 19, "0.95 of the longest, and the first such after three"


def test_no_more_plans_are_made_where_steps_follow_one_for_half_of_their_operations(
    cache: PlanCache, later: Later
) -> None:
    for ops in (5, 6, 7, 8):
        cache.end_step(of_length(ops))
    later.finish()
    for ops in range(9, 16):
        (cursor,) = cache.begin_step(living(1), LIMIT)
        cache.end_step(of_length(ops, cursor))
        assert cursor.followed_ops == 8
    assert not later.orders
    for ops in range(17, 21):
        assert not later.orders
        (cursor,) = cache.begin_step(living(1), LIMIT)
        cache.end_step(of_length(ops, cursor))
    assert len(later.orders) == 1
    later.finish()
    (cursor,) = cache.begin_step(living(1), LIMIT)
    assert len(cursor.plan.trace.ops) == 20, "it took the place of the other"


def test_of_what_a_step_loses_the_parts_count_that_followed_no_plan(cache: PlanCache, later: Later) -> None:
    for ops in (5, 6, 7, 8):
        cache.end_step(of_length(ops))
    later.finish()
    (cursor,) = cache.begin_step(living(1), LIMIT)
    assert of_length(16).lost_s == pytest.approx(1.0 + 16 * HOST_OP_S)
    assert of_length(16, cursor).lost_s == pytest.approx(0.5 + 8 * HOST_OP_S)


def test_operations_that_went_by_an_outlook_cost_the_host_little() -> None:
    step = of_length(16)
    step.record.ops_by_outlook = 12
    assert 1.0 + 4 * HOST_OP_S < step.lost_s < 1.0 + 5 * HOST_OP_S


def test_steps_that_came_back_to_their_plan_are_counted(cache: PlanCache, later: Later) -> None:
    for ops in (5, 6, 7, 8):
        cache.end_step(of_length(ops))
    later.finish()
    for is_back in (False, True):
        (cursor,) = cache.begin_step(living(1), LIMIT)
        if is_back:
            cursor.rejoin(4, {})
        cache.end_step(of_length(9, cursor))
    assert (cache.diverged_steps, cache.rejoined_steps) == (2, 1)
    cache.reset_counts()
    assert cache.rejoined_steps == 0


# -- steps that differ in the sizes of their pages alone ---------------------------------------------------------------


def batch(nbytes: int, done: PlanCursor | None = None, lost_s: float = 1.0) -> EndedStep:
    """A step of three operations on a page that lives on, and on one that each step has anew."""
    pages = [Living(1, 50), Living(next(IDS), nbytes)]
    ids = [page.id for page in pages]
    step = record(pages, ids[0], ids[1], ids[0])
    return EndedStep(step, done, LIMIT, round(lost_s * 1e9), 0, 50 + nbytes, Speeds(1e9, 1e9))


def follow(cache: PlanCache, nbytes: int) -> PlanCursor | None:
    """A cursor that has followed such a step; None if there is no plan for it."""
    step = batch(nbytes)
    cursors = cache.begin_step(step.record.living, LIMIT)
    assert len(cursors) <= 1, "one for each structure"
    cursor = cursors[0] if cursors else None
    while cursor is not None:
        step.record.retrace(cursor)
        if not cursor.has_diverged:
            return cursor
        cursor = cache.larger(cursor)
    return None


def cursor_for(cache: PlanCache, nbytes: int) -> PlanCursor:
    cursor = follow(cache, nbytes)
    assert cursor is not None
    return cursor


def test_steps_of_other_sizes_have_a_plan_with_room_to_grow(cache: PlanCache, later: Later) -> None:
    for nbytes in (20, 30, 40):
        assert not later.orders or nbytes == 40, "one is no more than one"
        cache.end_step(batch(nbytes))
    (order,) = later.orders
    assert [page.nbytes for page in order.trace.pages] == [50, 35], "the largest of the first two, and 80 / 16"
    later.finish()
    for nbytes, is_followed in ((1, True), (20, True), (35, True), (36, False)):
        cursor = follow(cache, nbytes)
        assert (cursor is not None) is is_followed
        assert cursor is None or cursor.is_done


def test_they_are_planned_once_they_have_lost_what_planning_costs(cache: PlanCache, later: Later) -> None:
    lost_s = PLANNING_S / 4.5 - OPS * HOST_OP_S
    for nbytes in (20, 30, 25, 40):
        cache.end_step(batch(nbytes, lost_s=lost_s))
        assert not later.orders
    cache.end_step(batch(10, lost_s=lost_s))
    (order,) = later.orders
    assert order.trace.pages[1].nbytes == 40 * 9 // 8, "the largest that was seen"


def test_what_outgrows_one_plan_follows_a_larger_one(cache: PlanCache, later: Later) -> None:
    for sizes in ((20, 20), (40, 40), (60, 60)):
        for nbytes in sizes:
            cache.end_step(batch(nbytes))
        later.finish()
        cache.begin_step([], LIMIT)
    for nbytes, planned in ((15, 20), (20, 20), (21, 40), (40, 40), (60, 60)):
        assert cursor_for(cache, nbytes).plan.trace.pages[1].nbytes == planned, "the smallest that is large enough"
    assert follow(cache, 80) is None


def test_a_step_of_other_operations_has_no_larger_plan(cache: PlanCache, later: Later) -> None:
    for nbytes in (20, 20, 40, 40):
        cache.end_step(batch(nbytes))
    later.finish()
    (cursor,) = cache.begin_step(living(1), LIMIT)
    cursor.op_begins("another", (1,))
    assert cursor.has_diverged
    assert cache.larger(cursor) is None


def test_much_smaller_steps_have_a_plan_of_their_own_once_it_pays(cache: PlanCache, later: Later) -> None:
    for _ in range(2):
        cache.end_step(batch(60))
    later.finish()
    for _ in range(8):
        assert not later.orders, "it takes 0.25 s to make one"
        cursor = cursor_for(cache, 10)
        cache.end_step(batch(10, cursor, lost_s=0.07))  # with 60 of the plan's 110 bytes
    cursor = cursor_for(cache, 10)
    cache.end_step(batch(10, cursor, lost_s=0.07))
    (order,) = later.orders
    assert not order.is_first, "the times of a step that followed a plan are good"
    assert order.trace.pages[1].nbytes == 10, "always the same"
    later.finish()
    cursor = cursor_for(cache, 10)
    assert cursor.plan.trace.pages[1].nbytes == 10
    for _ in range(100):
        cache.end_step(batch(55, follow(cache, 55)))
    assert not later.orders, "these need about as much as their plan has"


@pytest.mark.usefixtures("is_hasty")
def test_the_better_plan_is_for_the_sizes_of_the_quick_one(cache: PlanCache, later: Later) -> None:
    for nbytes in (20, 40):
        cache.end_step(batch(nbytes))
    assert later.orders[0].is_first
    later.finish()
    cursor = cursor_for(cache, 10)
    cache.end_step(batch(10, cursor))
    (order,) = later.orders
    assert not order.is_first
    assert [page.nbytes for page in order.trace.pages] == [50, 45]
    assert order.trace.recorded_nbytes == (50, 10)


def with_cache_anew(first: int, nbytes: int, then: int) -> tuple[StepRecord, list[Living]]:
    """A step that makes a cache anew, page ``then`` of page ``first``; and what lives when it ends."""
    found = StepRecord([Living(1, 50), Living(first, nbytes)], None)
    for number, pages in enumerate(((1,), (1, first), (1,))):
        found.begins(f"op{number}", pages, 0, False, float(number))
        if number == 1:
            found.created(then, nbytes, "")
        found.ends(())
    found.died(first)
    found.finish(3.0)
    return found, [Living(1, 50), Living(then, nbytes)]


def test_a_cache_that_each_step_makes_anew_is_known_before_it_is_used(cache: PlanCache, later: Later) -> None:
    """So a plan can fetch it in time. It must have been so twice."""
    known = []
    at_start = [Living(1, 50), Living(10, 20)]
    for number in range(10, 20):
        cursors = cache.begin_step(at_start, LIMIT)
        step, at_start = with_cache_anew(number, 20, number + 1)
        if cursors:
            known.append(cursors[0].next_use(number))
            step.retrace(cursors[0])
            assert cursors[0].is_done
        cache.end_step(EndedStep(step, cursors[0] if cursors else None, LIMIT, 10**9, 0, 100, Speeds(1e9, 1e9)))
        later.finish()
    assert known == [0, 0, 0, *[2] * 5], "in two operations; 0 says that it is not known"


@pytest.mark.usefixtures("is_hasty")
def test_no_plan_is_made_from_a_step_in_which_a_page_was_not_made(cache: PlanCache, later: Later) -> None:
    """An operation was interrupted, and the program went on."""
    for number in range(10, 13):
        step, _ = with_cache_anew(number, 20, number + 1)
        cache.end_step(EndedStep(step, None, LIMIT, 10**9, 0, 100, Speeds(1e9, 1e9)))
    later.finish()
    (cursor,) = cache.begin_step([Living(1, 50), Living(20, 20)], LIMIT)
    step = record([Living(1, 50), Living(20, 20)], 1)
    for number, pages in ((1, (1, 20)), (2, (1,))):
        step.begins(f"op{number}", pages, 0, False, float(number))
        step.ends(())
    step.finish(3.0)
    step.retrace(cursor)
    assert cursor.is_done
    cache.end_step(EndedStep(step, cursor, LIMIT, 10**9, 0, 100, Speeds(1e9, 1e9)))
    assert not later.orders


def test_what_becomes_of_a_page_is_not_guessed_if_it_changes(cache: PlanCache, later: Later) -> None:
    """Two caches change places: who took the last steps for a rule would leave the plan each time."""
    caches = [10, 20]
    for number in range(12):
        cursors = cache.begin_step([Living(1, 50), *(Living(page, 20) for page in caches)], LIMIT)
        one, other = caches if number % 2 else reversed(caches)
        step = StepRecord([Living(1, 50), Living(one, 20), Living(other, 20)])
        for place, pages in enumerate(((1, one), (1, other))):
            step.begins(f"op{place}", pages, 0, False, float(place))
            step.created(100 + 2 * number + place, 20, "")
            step.ends(())
        step.died(one)
        step.died(other)
        step.finish(2.0)
        for cursor in cursors:
            step.retrace(cursor)
            assert cursor.is_done
        cache.end_step(EndedStep(step, *(cursors or [None]), LIMIT, 10**9, 0, 100, Speeds(1e9, 1e9)))
        later.finish()
        caches = [100 + 2 * number, 101 + 2 * number]
    assert cache.planned_steps >= 8


def test_a_plan_in_which_nothing_moves_is_one_for_any_limit(cache: PlanCache, later: Later) -> None:
    for _ in range(2):
        cache.end_step(batch(20))
    later.finish()
    step = batch(20)
    for limit, is_followed in ((LIMIT, True), (10 * LIMIT, True), (70, True), (69, False), (LIMIT, False)):
        assert bool(cache.begin_step(step.record.living, limit)) is is_followed
