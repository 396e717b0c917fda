"""When pages come back, and how a step is followed."""

from collections.abc import Sequence

import pytest

from torch_lms.planner import Speeds, choose, gaps_of, make_plan
from torch_lms.planner.fetches import schedule
from torch_lms.planner.headroom import Headroom
from torch_lms.policy import PlanCursor, Planned, View
from torch_lms.residency import Page
from torch_lms.trace import Living, Recorder, Trace

OPS = 10


def step(uses: Sequence[Sequence[int]], sizes: Sequence[int], seconds: float = 1.0) -> tuple[Trace, Recorder]:
    """A step whose pages 100, 101, ... of ``sizes`` live before and after; operation n uses the pages ``uses[n]``."""
    recorder = Recorder([Living(100 + number, nbytes) for number, nbytes in enumerate(sizes)])
    for number, pages in enumerate(uses):
        recorder.begins(f"op{number}", [100 + page for page in pages], 0, number * seconds)
        recorder.wrote([100 + page for page in pages])
    recorder.finish(len(uses) * seconds)
    return recorder.trace(), recorder


def used_at(*positions: int) -> list[list[int]]:
    return [[0] if number in positions else [] for number in range(OPS)]


@pytest.mark.parametrize(
    ("bytes_per_s", "begins"),
    [(1000.0, 8), (20.0, 8), (7.0, 7), (2.45, 4)],
    ids=["at the last moment", "one operation", "two", "five"],
)
def test_as_late_as_it_arrives_in_time(bytes_per_s: float, begins: int) -> None:
    """10 bytes, before operation 9."""
    trace, _ = step(used_at(0, 9), [10])
    gaps = [gap for gap in gaps_of(trace) if gap.before == 9]
    comes = schedule(trace, gaps, Headroom(trace, 100), bytes_per_s)
    assert [number for number, pages in enumerate(comes) if pages] == [begins]


def test_one_link_first_needed_first_served() -> None:
    """Two pages are needed by one operation: they come one after the other."""
    uses = [[0, 1] if number in (0, 9) else [] for number in range(OPS)]
    trace, _ = step(uses, [7, 7])
    gaps = [gap for gap in gaps_of(trace) if gap.before == 9]
    comes = schedule(trace, gaps, Headroom(trace, 100), 10.0)
    assert [number for number, pages in enumerate(comes) if pages] == [7, 8]


def test_one_link_for_this_step_and_the_next() -> None:
    """Page 1 left in the step before, page 0 in this one, and both are needed at operations 8 and 9."""
    uses = [[0] if number in (0, 8) else [1] if number == 9 else [] for number in range(OPS)]
    trace, _ = step(uses, [20, 20])
    gaps = [gap for gap in gaps_of(trace) if gap.before in (8, 9)]
    assert {(gap.page, gap.after, gap.before) for gap in gaps} == {(0, 0, 8), (1, 9, 9)}
    comes = schedule(trace, gaps, Headroom(trace, 100), 10.0)
    assert [number for number, pages in enumerate(comes) if pages] == [5, 7], "2 s each, one after the other"


def test_not_before_there_is_room() -> None:
    uses = used_at(0, 9)
    uses[7] = [1]
    trace, _ = step(uses, [10, 95])
    gaps = [gap for gap in gaps_of(trace) if gap.before == 9]
    for gap in gaps:
        room = Headroom(trace, 100)
        room.take(gap)
    assert not any(schedule(trace, gaps, room, 1.0)), "page 1 stays all the time"


def test_a_page_that_is_away_when_the_step_ends_comes_in_the_next() -> None:
    trace, _ = step(used_at(4, 6), [10])
    gaps = [gap for gap in gaps_of(trace) if gap.after == 6]
    assert [gap.before for gap in gaps] == [4]
    comes = schedule(trace, gaps, Headroom(trace, 100), 2.45)
    assert [number for number, pages in enumerate(comes) if pages] == [9], "before operation 4 of the next"


def test_small_pages_come_in_groups() -> None:
    """Each when the first of the group before is needed; a large one as late as it arrives in time."""
    sizes = [200_000] * 7 + [600_000]
    trace, _ = step([[*range(8)], *([] for _ in range(11)), *([page] for page in range(8))], sizes)
    gaps = [gap for gap in gaps_of(trace) if gap.before >= 12]
    comes = schedule(trace, gaps, Headroom(trace, 4 * 10**6), 1e9)
    assert {number: pages for number, pages in enumerate(comes) if pages} == {
        11: [0],
        12: [1, 2, 3, 4, 5],
        15: [6],
        18: [7],
    }


def planned(limit: int = 60) -> PlanCursor:
    """Of a step in which page 0 is away while page 1 is used."""
    uses = [[0], [1], [1], [1], [0]]
    trace, recorder = step(uses, [50, 50])
    assert [gap.page for gap in choose(trace, limit)] == [0, 1]
    plan = make_plan(trace, limit, recorder.numbers, Speeds(1e9, 1e9))
    return PlanCursor(plan, {100: 50, 101: 50})


def test_a_page_leaves_after_its_last_use_and_is_expected_back() -> None:
    cursor = planned()
    cursor.op_begins("op0", (100,))
    assert (list(cursor.to_evict), list(cursor.to_fetch)) == ([101], [])
    cursor.op_begins("op1", (101,))
    assert list(cursor.due) == list(cursor.to_evict) == [100]
    assert cursor.next_use(100) == 3
    cursor.op_begins("op2", (101,))
    cursor.op_begins("op3", (101,))
    cursor.op_begins("op4", (100,))
    assert list(cursor.due) == [101]
    assert cursor.is_done
    assert not cursor.has_diverged


def test_smaller_pages_are_followed() -> None:
    """A plan for the largest batch is one for all others."""
    plan = planned().plan
    cursor = PlanCursor(plan, {100: 50, 102: 20})
    cursor.op_begins("op0", (100,))
    for number in (1, 2, 3):
        cursor.op_begins(f"op{number}", (102,))
    assert list(cursor.due) == [100]
    cursor.op_begins("op4", (100,))
    assert list(cursor.due) == [102]
    assert cursor.is_done


def test_a_larger_page_ends_it_and_is_told() -> None:
    cursor = PlanCursor(planned().plan, {100: 50, 102: 51})
    cursor.op_begins("op0", (100,))
    assert cursor.outgrown is None
    cursor.op_begins("op1", (102,))
    assert cursor.has_diverged
    assert cursor.outgrown == (1, 51)


def test_a_known_page_that_has_grown_is_not_the_one_that_was_known() -> None:
    cursor = PlanCursor(planned().plan, {100: 51, 101: 50})
    cursor.op_begins("op0", (100,))
    assert cursor.outgrown == (0, 51)


@pytest.mark.parametrize(("nbytes", "is_followed"), [(30, True), (29, True), (31, False)])
def test_what_is_created_may_be_smaller(nbytes: int, is_followed: bool) -> None:
    recorder = Recorder([Living(1, 10)])
    recorder.begins("op0", [1], 30, now=0.0)
    recorder.created(Living(2, 30))
    recorder.finish(now=1.0)
    plan = make_plan(recorder.trace(), 100, recorder.numbers, Speeds(1e9, 1e9))
    cursor = PlanCursor(plan, {1: 10})
    cursor.op_begins("op0", (1,))
    cursor.created(7, nbytes)
    assert cursor.has_diverged is not is_followed
    assert cursor.outgrown == (None if is_followed else (1, 31))


@pytest.mark.parametrize(
    ("name", "pages"),
    [("another", (101,)), ("op1", (100,)), ("op1", ()), ("op1", (101, 100)), ("op1", (102,))],
    ids=["name", "page", "fewer pages", "more pages", "a larger page"],
)
def test_whatever_differs_ends_it(name: str, pages: tuple[int, ...]) -> None:
    cursor = planned()
    cursor.created(102, 51)
    cursor.op_begins("op0", (100,))
    cursor.op_begins(name, pages)
    assert cursor.has_diverged
    assert not cursor.is_done


def test_a_step_that_goes_on_is_another() -> None:
    cursor = planned()
    for number, page in enumerate((100, 101, 101, 101, 100, 100)):
        cursor.op_begins(f"op{number}", (page,))
    assert cursor.has_diverged


def test_a_page_that_died_is_neither_due_nor_known() -> None:
    cursor = planned()
    cursor.op_begins("op0", (100,))
    cursor.op_begins("op1", (101,))
    cursor.died(100)
    assert not cursor.due
    assert cursor.next_use(100) == 0


def test_due_pages_leave_first_then_those_used_last() -> None:
    policy = Planned()
    policy.cursor = planned()
    policy.cursor.op_begins("op0", (100,))
    pages = {number: Page(number, 50) for number in (100, 101, 102)}
    victims = [page.id for page in policy.victims(View({}, pages, 0))]
    assert victims[0] == 101
    assert victims.index(100) < victims.index(102), "of page 102 nothing is known: it may be needed at once"
    assert policy.name == "planned"
    policy.cursor = None
    assert policy.name == "reactive"
    assert len(list(policy.victims(View({}, pages, 0)))) == 3
