"""The lives of pages in a timeline, and which page a stall waited for."""

import pytest
from made_traces import THERE_AND_BACK

from torch_lms.policy import Reactive
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds, Simulator
from torch_lms.timeline import Lane, Life, Lives, Span, Timeline, with_pages_waited_for


def simulated() -> Timeline:
    """Page 1 leaves before operation 1, in 2 s, and comes back before operation 4, in 1 s."""
    links = LinkSpeeds(d2h=5, h2d=10, disk_write=1, disk_read=1)
    return Simulator(THERE_AND_BACK, 20, {Tier.HOST: 100}, links, Reactive()).step().timeline


def test_a_life_from_birth_to_death() -> None:
    weight, first, second = simulated().lives
    assert (weight.made_by, weight.born_at, weight.born_s, weight.dead_s) == ("", (-1, 0), None, None)
    assert weight.uses_s == (0, 3, 4)
    assert (first.made_by, first.born_at, first.born_s, first.dead_s) == ("op", (0, 0), 0, 8)
    assert first.uses_s == (0, 7)
    assert (second.born_at, second.born_s, second.uses_s) == ((1, 0), 3, (3, 5))
    assert second.dead_s == 6  # with the operation that used it last, before the next one waits


def test_a_stall_knows_the_page_that_it_waited_for() -> None:
    stalls = [span for span in simulated().spans if span.name == "stall" and span.end_s > span.start_s]
    assert [(span.start_s, span.end_s, span.page) for span in stalls] == [(1, 3, 1), (6, 7, 1)]


def test_of_copies_that_ended_meanwhile_the_one_that_is_needed_next_was_waited_for() -> None:
    stall = Span(Lane.COMPUTE, "stall", 0.0, 3.0)
    needed = Span(Lane.H2D, "fetch", 0.0, 2.9, 10, page=1)
    by_chance = Span(Lane.H2D, "fetch", 0.0, 2.99, 10, page=2)
    lives = [Life(1, 10, "", (-1, 0), None, None, (3.0,)), Life(2, 10, "", (-1, 1), None, None, (9.0,))]
    told = with_pages_waited_for([stall, needed, by_chance], lives)
    assert told == (stall._replace(page=1), needed, by_chance)
    assert with_pages_waited_for([stall], lives) == (stall,)
    assert with_pages_waited_for([stall, by_chance], [])[0].page == 2


def test_a_page_whose_death_is_told_late_dies_before_the_next_operation() -> None:
    lives = Lives([(7, 100)])
    lives.op_begins("first", (7,), 0.5)
    lives.op_runs(1.0)
    lives.created(8, 50)
    lives.died(8)
    lives.died(9)  # nobody spoke of it before
    lives.op_begins("second", (), 2.0)
    old, new = lives.at_end(3.0)
    assert old == Life(7, 100, "", (-1, 0), None, None, (1.0,))
    assert new == Life(8, 50, "first", (0, 0), 1.0, pytest.approx(2.0), (1.0,))
