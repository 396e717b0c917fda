"""For which sizes a plan is made, where steps differ in these alone."""

import pytest

from torch_lms.engine.sizes_seen import SizesSeen, likeness

MB = 10**6


def seen(*steps: tuple[int, ...]) -> SizesSeen:
    found = SizesSeen()
    for sizes in steps:
        found.add(sizes)
    return found


def test_what_never_changed_keeps_its_size() -> None:
    assert seen((7, 5), (7, 5)).with_room(12, 0) == (7, 5)


def test_what_changed_has_room_for_an_eighth_more_than_the_most() -> None:
    """Activations of batches of other lengths: they are most of what there is."""
    assert seen((MB, 8 * MB), (MB, 4 * MB), (MB, 16 * MB)).with_room(17 * MB, 0) == (MB, 18 * MB)


@pytest.mark.parametrize(
    ("demand_bytes", "with_room"), [(8 * MB, 1.125), (64 * MB, 1.5), (128 * MB, 2), (1024 * MB, 2)]
)
def test_the_less_changes_the_more_it_may_grow(demand_bytes: int, with_room: float) -> None:
    """A cache of keys and values, beside the weights of a model: twice, if that is a sixteenth of all or less."""
    assert seen((6 * MB, 100), (8 * MB, 100)).with_room(demand_bytes, 0) == (int(8 * MB * with_room), 100)


@pytest.mark.parametrize(("limit", "largest"), [(99, 90), (100, 80), (104, 84), (108, 88), (200, 90)])
def test_what_fits_still_fits(limit: int, largest: int) -> None:
    assert seen((20, 60), (20, 80)).with_room(100, limit) == (20, largest)


def test_each_page_has_the_most_that_it_had() -> None:
    """Pictures of other shapes: one step has the largest page here, another there."""
    assert seen((80, 8), (8, 80)).with_room(88, 0) == (90, 90)


def test_steps_are_alike_if_they_need_about_as_much() -> None:
    assert likeness(1, 1000) == likeness(1, 1020)
    assert likeness(1, 1000) != likeness(1, 1200)
    assert likeness(1, 1000) != likeness(2, 1000)
    assert likeness(1, 0) == likeness(1, 1)
