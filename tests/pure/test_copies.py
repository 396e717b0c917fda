"""Copies that ended: how busy a link was with them, and what a timeline shows."""

import pytest

from torch_lms.timeline import Copies, Lane, Link, Span

SPANS = [
    Span(Lane.D2H, "evict", 0.0, 2.0, 100, 1),
    Span(Lane.H2D, "fetch", 1.0, 3.0, 50, 2),
    Span(Lane.D2H, "evict", 1.0, 4.0, 100, 3),
    Span(Lane.D2H, "evict", 5.0, 6.0, 100, 4),
]


def test_spans_come_out_as_they_went_in() -> None:
    assert list(Copies.of(SPANS).spans()) == SPANS
    assert list(Copies.of([]).spans()) == []


def test_two_sources_make_one_order() -> None:
    assert list(Copies.of(SPANS[::2]).beside(Copies.of(SPANS[1::2])).spans()) == SPANS


def test_a_link_is_busy_once_with_copies_at_one_time() -> None:
    copies, down, up = Copies.of(SPANS), Link(), Link()
    down.add(copies.times(Lane.D2H))
    up.add(copies.times(Lane.H2D))
    assert (down.nbytes, down.busy_s) == (300, pytest.approx(5))
    assert (up.nbytes, up.bytes_per_s) == (50, pytest.approx(25))
    down.add([(5.5, 5.9, 7)])
    assert (down.nbytes, down.busy_s) == (307, pytest.approx(5))
