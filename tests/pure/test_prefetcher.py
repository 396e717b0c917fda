"""What moves before it must, where there is no plan."""

from random import Random

import pytest
from made_traces import Op, traced

from torch_lms.policy import FirstUse, Outlook, Prefetch, Reactive, View
from torch_lms.policy.prefetcher import Prefetcher
from torch_lms.residency import Page, Tier
from torch_lms.sim import LinkSpeeds, SimulatedStep, Simulator
from torch_lms.trace import Trace

LIMIT = 800


def page(number: int, last_use: int = 0, nbytes: int = 100) -> Page:
    return Page(number, nbytes, last_use=last_use)


class Program:
    """Pages that are away, and what comes back to the program.

    Args:
        last_uses: of the pages that are away, numbered from 0 on.
        room: bytes left under the limit.
        step_began: see ``View``.
    """

    def __init__(self, last_uses: list[int], room: int = LIMIT, step_began: int = 0) -> None:
        away = {number: page(number, last_use) for number, last_use in enumerate(last_uses)}
        self.view = View({}, {}, 1000, away=away, limit=LIMIT, room=room, step_began=step_began)
        self.prefetcher = Prefetcher()

    def uses(self, *last_uses: int, nbytes: int = 100) -> list[int]:
        """The program uses pages that were used then; what is fetched beside the last of them."""
        found: Prefetch | None = None
        for last_use in last_uses:
            self.view.tick += 1
            self.view.used = [page(99, last_use, nbytes)]
            found = self.prefetcher.choose(self.view, ())
        assert found is None or not found.evict
        return [] if found is None else list(found.fetch)


def copied(room: int, clean: list[Page], dirty: list[Page], evicting: list[Page] | None = None) -> list[int]:
    """What is copied down where somebody has asked for room."""
    by_number = {page.id: page for page in clean}
    under_way = {page.id: page for page in evicting or []}
    view = View(by_number, {}, 1000, under_way, away={99: page(99)}, limit=LIMIT, room=room)
    prefetcher = Prefetcher()
    prefetcher.ran_short()
    found = prefetcher.choose(view, dirty)
    return [] if found is None else list(found.evict)


# -- what is fetched -------------------------------------------------------------------------------------------------


def test_backward_what_was_used_in_this_step_comes_back_in_reverse() -> None:
    assert Program([10, 20, 30, 40]).uses(60, 50) == [3, 2, 1, 0]


def test_what_the_program_has_passed_by_is_not_fetched() -> None:
    assert Program([10, 20, 30, 40]).uses(50, 25) == [1, 0]


def test_forward_what_was_used_in_the_step_before_comes_back_in_that_order() -> None:
    assert Program([30, 40, 500, 510], step_began=100).uses(10, 20) == [0, 1]


def test_the_next_step_is_told_by_its_own_uses() -> None:
    program = Program([10, 20, 30, 40])
    assert program.uses(60, 50)
    program.view.step_began = program.view.tick
    assert program.uses(5) == []


def test_a_quarter_of_the_limit_is_left_to_the_program() -> None:
    assert Program([10, 20, 30, 40], room=LIMIT // 4 + 250).uses(60, 50) == [3, 2]
    assert Program([10, 20, 30, 40], room=LIMIT // 4).uses(60, 50) == []


@pytest.mark.parametrize("last_uses", [(50,), (50, 50), (50, 60), (60, 50, 70), (990, 985)])
def test_nothing_is_fetched_where_the_program_goes_by_no_order(last_uses: tuple[int, ...]) -> None:
    """Of pages that were in use just now nobody can tell where the program is."""
    assert Program([10, 20, 30, 40]).uses(*last_uses) == []


def test_a_small_page_elsewhere_does_not_count() -> None:
    program = Program([10, 20, 30, 40])
    program.uses(60, 55)
    program.uses(57, nbytes=1)
    assert program.uses(50) == [3, 2, 1, 0]


# -- in rounds -------------------------------------------------------------------------------------------------------


def round_of(last_uses: list[int], room: int = 0, clean: tuple[int, ...] = ()) -> Program:
    """A program in its second step: in the first it came back to pages of the step before alone."""
    program = Program(last_uses, room, step_began=500)
    program.uses(10, 20)
    program.view.step_began = 900
    program.view.clean = {100 + tick: page(100 + tick, tick) for tick in clean}
    return program


def test_in_rounds_what_was_used_last_leaves_for_what_is_needed_soon() -> None:
    program = round_of([610, 620, 700], clean=(600, 950, 960, 999))
    program.view.used = [page(99, 600)]
    program.prefetcher.choose(program.view, ())
    program.view.used = [page(99, 605)]
    found = program.prefetcher.choose(program.view, ())
    assert found == Prefetch([1060, 1050], [0, 1])  # not 999, which is in use, nor 600, which comes soon


def test_at_the_end_of_a_round_the_next_begins_soon() -> None:
    """Page 0 was used at the beginning of this round, and left; page 1010 was used there, too, and stays."""
    program = round_of([905, 950], clean=(910, 960))
    for last_use in (885, 890):
        program.view.tick += 1
        program.view.used = [page(99, last_use)]
        found = program.prefetcher.choose(program.view, ())
    assert found == Prefetch([1060], [0])


def test_a_program_that_comes_back_within_its_step_goes_in_no_rounds() -> None:
    program = round_of([610, 620], clean=(950,))
    program.uses(600)
    assert program.prefetcher.goes_round(program.view)
    program.uses(920, nbytes=LIMIT)
    assert not program.prefetcher.goes_round(program.view)


# -- what is copied down ---------------------------------------------------------------------------------------------


def test_an_eighth_of_the_limit_can_leave_without_a_wait() -> None:
    dirty = [page(number, nbytes=40) for number in range(9)]
    assert copied(0, [], dirty) == [0, 1, 2]  # 100 bytes, to the nearest page
    assert copied(50, [], dirty) == [0]
    assert copied(100, [], dirty) == []
    assert copied(0, [page(50, nbytes=70)], dirty) == [0]
    assert copied(0, [], dirty, evicting=[page(60, nbytes=70)]) == [0]


def test_what_was_used_lately_neither_counts_nor_is_copied() -> None:
    assert copied(0, [page(50, last_use=990)], [page(1, last_use=990), page(2, last_use=980)]) == [2]


def test_what_the_operation_needs_comes_first() -> None:
    """The room is beside that: it leaves at once, and so do as many pages more."""
    assert copied(-100, [], [page(number) for number in range(9)]) == [0, 1]


def test_as_long_as_nobody_asks_for_room_nothing_is_copied() -> None:
    """In this step or the one before: what is away may be so for good."""
    view = View({}, {}, 1000, away={99: page(99)}, limit=LIMIT, room=0)
    prefetcher = Prefetcher()
    assert prefetcher.choose(view, [page(1)]) is None
    prefetcher.ran_short()
    assert prefetcher.choose(view, [page(1)]) == Prefetch([1], [])
    view.step_began = 900
    assert prefetcher.choose(view, [page(1)]) == Prefetch([1], [])
    view.step_began = 950
    assert prefetcher.choose(view, [page(1)]) is None


# -- what the operations to come may go by, without being asked ------------------------------------------------------


def outlook(*last_uses: int) -> Outlook | None:
    """After pages with these last uses came back, one after the other. Others, used at 800 to 803, are away."""
    view = View({}, {}, 1000, away={number: page(number, 800 + number) for number in range(4)}, limit=LIMIT)
    view.step_began = 700
    prefetcher = Prefetcher()
    prefetcher.outlook(view, [])
    prefetcher.went_on(view, [FirstUse(1000 + place, last_use, 100) for place, last_use in enumerate(last_uses)])
    return prefetcher.outlook(view, [7, 8])


def test_an_outlook_names_what_comes_back_in_the_order_of_the_program() -> None:
    assert outlook(910, 905) == Outlook([7, 8], [3, 2, 1, 0], 0, LIMIT // 4)
    assert outlook(905, 910) == Outlook([7, 8], [], 0, LIMIT // 4)


def test_uses_within_sixteen_operations_tell_nothing() -> None:
    assert outlook(999, 998) == outlook()


def test_an_outlook_has_a_reserve_once_somebody_asked_for_room() -> None:
    def reserve() -> int:
        found = prefetcher.outlook(view, [])
        assert found is not None
        return found.reserve

    view = View({}, {}, 1000, away={99: page(99)}, limit=LIMIT)
    prefetcher = Prefetcher()
    assert reserve() == 0
    prefetcher.ran_short()
    assert reserve() == LIMIT // 8
    view.step_began = 900
    assert reserve() == LIMIT // 8  # also in the step after
    view.step_began = 950
    assert reserve() == 0
    prefetcher.ran_short()
    view.away = {}
    assert reserve() == 0


# -- what that is worth ----------------------------------------------------------------------------------------------


class Waiting(Reactive):
    """Moves nothing before it must."""

    def prefetch(self, view: View) -> Prefetch | None:
        return None


def forward_and_backward(layers: int) -> Trace:
    """Each layer keeps a page until its turn comes on the way back."""
    forward = [Op([0], [1 + layer]) for layer in range(layers)]
    backward = [Op([0, 1 + layer]) for layer in reversed(range(layers))]
    return traced([*forward, *backward], nbytes=10)


def inference(layers: int) -> Trace:
    """Each layer has a weight of 100 bytes, and four operations on small results, of which the first uses it."""
    ops = []
    last = layers
    for layer in range(layers):
        for first in (True, False, False, False):
            ops.append(Op([layer, last] if first else [last], [last + 1]))
            last += 1
    trace = traced(ops, [*range(layers), layers], nbytes=10)
    pages = [page._replace(nbytes=100) if number < layers else page for number, page in enumerate(trace.pages)]
    return Trace(tuple(pages), trace.ops)


def in_any_order(pages: int, seed: int) -> Trace:
    draw = Random(seed)
    return traced([Op([draw.randrange(pages)]) for _ in range(400)], range(pages), nbytes=10)


def simulated(trace: Trace, limit: int, policy: Reactive, bytes_per_s: float) -> SimulatedStep:
    links = LinkSpeeds(bytes_per_s, bytes_per_s, bytes_per_s, bytes_per_s)
    simulator = Simulator(trace, limit, {Tier.HOST: 10**6}, links, policy)
    simulator.step()
    return simulator.step()


def test_copies_take_less_time_from_a_step() -> None:
    trace = forward_and_backward(100)
    limit = 500
    waiting, ahead = (simulated(trace, limit, policy, 10.0) for policy in (Waiting(), Reactive()))
    assert ahead.stall_s < 0.1 * waiting.stall_s
    assert ahead.peak_bytes <= limit
    assert ahead.evicted_bytes <= waiting.evicted_bytes + limit / 8
    assert ahead.fetched_bytes <= waiting.fetched_bytes


@pytest.mark.parametrize("clean", [False, True])
def test_inference_fetches_what_does_not_fit_and_hides_it(clean: bool) -> None:
    """Whether weights have a lower copy from the start, as those of files, or not."""
    trace = inference(64)
    limit = 64 * 100 * 3 // 4
    links = LinkSpeeds(20.0, 20.0, 20.0, 20.0)
    simulator = Simulator(trace, limit, {Tier.HOST: 10**6}, links, Reactive())
    simulator.step()
    if clean:
        simulator.pager.limit = 500
        simulator.step()
        simulator.pager.limit = limit
    for _ in range(4):
        step = simulator.step()
    assert step.fetched_bytes <= 64 * 100 // 4 + 16 * 100  # and what is in use, or needed soon
    assert step.seconds <= 1.02 * trace.seconds


def test_a_program_without_order_loses_little() -> None:
    traces = [in_any_order(60, seed) for seed in range(8)]
    waiting = sum(simulated(trace, 300, Waiting(), 10.0).seconds for trace in traces)
    ahead = sum(simulated(trace, 300, Reactive(), 10.0).seconds for trace in traces)
    assert ahead <= 1.05 * waiting
