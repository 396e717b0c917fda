"""The transition table, each entry and each gap; the ledger after each; what an error tells."""

from dataclasses import asdict
from itertools import product
from typing import Any

import pytest

from torch_lms.errors import InvalidTransition, InvariantError, LmsError
from torch_lms.residency import TRANSITIONS, Book, Page, State, Tier, Trigger, transition_table

NBYTES = 100

EVICT = [(Trigger.START_EVICT, Tier.DISK), (Trigger.FINISH_EVICT, None), (Trigger.RELEASE, None)]
PATHS: dict[State, list[tuple[Trigger, Tier | None]]] = {
    State.RESIDENT: [],
    State.EVICTING: EVICT[:1],
    State.CLEAN: EVICT[:2],
    State.EVICTED: EVICT,
    State.FETCHING: [*EVICT, (Trigger.START_FETCH, None)],
    State.DROPPED: [(Trigger.DROP, None)],
    State.DEAD: [(Trigger.DIE, None)],
}
"""How a new page gets into each state."""

COSTS = {
    State.RESIDENT: (NBYTES, 0),
    State.CLEAN: (NBYTES, NBYTES),
    State.EVICTING: (NBYTES, NBYTES),
    State.EVICTED: (0, NBYTES),
    State.FETCHING: (NBYTES, NBYTES),
    State.DROPPED: (0, 0),
    State.DEAD: (0, 0),
}
"""Bytes on the device and in the lower tier, as the docstrings of the states say."""

LEGAL = list(TRANSITIONS)
ILLEGAL = [pair for pair in product(State, Trigger) if pair not in TRANSITIONS]


def page_in(book: Book, state: State, page_id: int = 1) -> Page:
    page = book.add(page_id, NBYTES)
    for trigger, tier in PATHS[state]:
        book.apply(page, trigger, tier)
    assert page.state is state
    return page


def everything(book: Book, page: Page) -> tuple[dict[str, int], dict[str, Any], list[int]]:
    return asdict(book.ledger), {name: getattr(page, name) for name in Page.__slots__}, [p.id for p in book]


def name_of(value: object) -> str | None:
    return value.value if isinstance(value, State | Trigger | Tier) else None


# -- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "trigger"), LEGAL, ids=name_of)
def test_legal_transition(book: Book, state: State, trigger: Trigger) -> None:
    page = page_in(book, state)
    tier = Tier.HOST if trigger in (Trigger.START_EVICT, Trigger.FIND_COPY) else page.tier
    book.apply(page, trigger, tier)
    after = TRANSITIONS[state, trigger]
    assert page.state is after
    device, lower = COSTS[after]
    assert (book.ledger.device, book.ledger.host + book.ledger.disk) == (device, lower)
    assert book.ledger.live == (0 if after is State.DEAD else NBYTES)
    assert page.tier is (tier if lower else None)
    assert (1 in book) == (after is not State.DEAD)
    book.validate()


@pytest.mark.parametrize(("state", "trigger"), ILLEGAL, ids=name_of)
def test_illegal_transition_raises_and_changes_nothing(book: Book, state: State, trigger: Trigger) -> None:
    page = page_in(book, state)
    before = everything(book, page)
    with pytest.raises(InvalidTransition):
        book.apply(page, trigger, Tier.HOST)
    assert everything(book, page) == before
    book.validate()


def test_the_states_that_cost_device_bytes_or_lower_ones() -> None:
    assert {state: (state.on_device, state.in_lower_tier) for state in State} == {
        state: (device > 0, lower > 0) for state, (device, lower) in COSTS.items()
    }


def test_every_state_can_be_reached_and_left_but_death() -> None:
    reached = {after for (state, _), after in TRANSITIONS.items() if after is not state}
    left = {state for (state, _), after in TRANSITIONS.items() if after is not state}
    assert reached == set(State)
    assert left == set(State) - {State.DEAD}


def test_only_a_page_at_rest_dies() -> None:
    assert {state for state, trigger in TRANSITIONS if trigger is Trigger.DIE} == {
        State.RESIDENT,
        State.CLEAN,
        State.EVICTED,
        State.DROPPED,
    }


def test_a_write_leaves_no_lower_copy_that_counts() -> None:
    for (_, trigger), after in TRANSITIONS.items():
        if trigger is Trigger.WRITE:
            assert after is State.RESIDENT


def test_the_table_as_markdown_has_every_transition() -> None:
    lines = transition_table().splitlines()
    assert len(lines) == 2 + len(TRANSITIONS)
    for (state, trigger), after in TRANSITIONS.items():
        assert f"| {state.value} | {trigger.value} | {after.value} |" in lines


# -- the story -------------------------------------------------------------------------------------------------------


def test_the_error_tells_the_story_and_what_would_be_possible(book: Book) -> None:
    page = page_in(book, State.EVICTED, page_id=7)
    page.pins = 0
    with pytest.raises(InvalidTransition) as error:
        book.apply(page, Trigger.WRITE)
    assert str(error.value) == (
        "page 7 of 100 bytes (pins 0; so far: start evict, finish evict, release): "
        "'write' is not possible while 'evicted' (possible: start fetch, die)"
    )
    assert isinstance(error.value, LmsError)


def test_the_error_about_a_new_page_and_about_a_dead_one(book: Book) -> None:
    page = book.add(1, NBYTES)
    with pytest.raises(InvalidTransition, match="so far: nothing yet"):
        book.apply(page, Trigger.FINISH_FETCH)
    book.apply(page, Trigger.DIE)
    with pytest.raises(InvalidTransition, match=r"so far: die.*while 'dead' \(possible: nothing\)"):
        book.apply(page, Trigger.WRITE)


def test_the_story_is_short_however_long_the_life(book: Book) -> None:
    page = book.add(1, NBYTES)
    for _ in range(100):
        book.apply(page, Trigger.START_EVICT, Tier.DISK)
        book.apply(page, Trigger.FAIL_EVICT)
    assert page.story.count("evict") == 12
    assert page.story.endswith("start evict, fail evict)")


# -- the ledger ------------------------------------------------------------------------------------------------------


def test_ledger_over_a_life_in_both_tiers(book: Book) -> None:
    first, second = book.add(1, 30), book.add(2, 50)
    book.apply(first, Trigger.START_EVICT, Tier.HOST)
    book.apply(second, Trigger.START_EVICT, Tier.DISK)
    assert (book.ledger.device, book.ledger.host, book.ledger.disk) == (80, 30, 50)
    for page in (first, second):
        book.apply(page, Trigger.FINISH_EVICT)
        book.apply(page, Trigger.RELEASE)
    assert (book.ledger.device, book.ledger.host, book.ledger.disk, book.ledger.live) == (0, 30, 50, 80)
    book.apply(first, Trigger.START_FETCH)
    book.apply(first, Trigger.FINISH_FETCH)
    book.apply(first, Trigger.WRITE)
    assert (book.ledger.device, book.ledger.host, book.ledger.disk) == (30, 0, 50)
    book.apply(second, Trigger.DIE)
    assert (book.ledger.device, book.ledger.host, book.ledger.disk, book.ledger.live) == (30, 0, 0, 30)
    assert (book.ledger.peak_device, book.ledger.peak_live) == (80, 80)


def test_peaks_stay(book: Book) -> None:
    page = book.add(1, 100)
    book.apply(page, Trigger.DIE)
    book.add(2, 40)
    assert (book.ledger.device, book.ledger.peak_device, book.ledger.peak_live) == (40, 100, 100)


def test_what_is_found_counts_once_there_is_room(book: Book) -> None:
    first = book.add(1, 70)
    book.add(2, 40, is_found=True)
    assert (book.ledger.device, book.ledger.peak_device, book.ledger.peak_live) == (110, 70, 110)
    for trigger in (Trigger.START_EVICT, Trigger.FINISH_EVICT, Trigger.RELEASE):
        book.apply(first, trigger, Tier.HOST)
    book.ledger.note_peak_device()
    assert (book.ledger.device, book.ledger.peak_device) == (40, 70)


def test_a_book_is_a_collection_of_living_pages(book: Book) -> None:
    pages = [book.add(number, 10) for number in range(3)]
    book.apply(pages[1], Trigger.DIE)
    assert len(book) == 2
    assert [page.id for page in book] == [0, 2]
    assert 1 not in book
    assert book[2] is pages[2]


@pytest.mark.parametrize("nbytes", [0, 10, 1000])
def test_resize(book: Book, nbytes: int) -> None:
    page = book.add(1, NBYTES)
    book.resize(page, nbytes)
    assert (page.nbytes, book.ledger.device, book.ledger.live) == (nbytes, nbytes, nbytes)
    assert book.ledger.peak_live == max(NBYTES, nbytes)


@pytest.mark.parametrize("state", [state for state in State if state is not State.RESIDENT], ids=name_of)
def test_only_a_resident_page_without_lower_copy_is_resized(book: Book, state: State) -> None:
    page = page_in(book, state)
    before = everything(book, page)
    with pytest.raises(InvalidTransition, match=f"page 1 of 100 bytes.*resized while '{state.value}'"):
        book.resize(page, 7)
    assert everything(book, page) == before


# -- validate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["device", "held", "live", "host", "disk"])
def test_validate_finds_a_wrong_ledger(entry: str) -> None:
    book = Book()
    page_in(book, State.CLEAN)
    setattr(book.ledger, entry, getattr(book.ledger, entry) + 1)
    with pytest.raises(InvariantError, match="the ledger says"):
        book.validate()


@pytest.mark.parametrize(
    ("state", "attribute", "value", "complaint"),
    [
        (State.RESIDENT, "pins", -1, "unpinned more often than pinned"),
        (State.EVICTED, "pins", 1, "pinned, yet evicted"),
        (State.CLEAN, "unpageable", "shared memory", r"may not leave the device \(shared memory\)"),
        (State.EVICTED, "unpageable", "shared memory", "may not leave the device"),
        (State.RESIDENT, "tier", Tier.DISK, "in tier"),
    ],
)
def test_validate_finds_a_wrong_page(state: State, attribute: str, value: object, complaint: str) -> None:
    book = Book()
    setattr(page_in(book, state), attribute, value)
    with pytest.raises(InvariantError, match=complaint):
        book.validate()


def test_validate_finds_a_lower_copy_that_is_nowhere() -> None:
    book = Book()
    page = book.add(1, NBYTES)
    book.apply(page, Trigger.START_EVICT, None)
    with pytest.raises(InvariantError):
        book.validate()
