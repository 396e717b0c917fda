"""Extents against a model that knows who owns every single grain."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from torch_lms.errors import InvariantError
from torch_lms.stores.extents import Extents

GRAIN = 16


class ExtentsAgainstModel(RuleBasedStateMachine):
    """``self.owner`` has one entry per grain of the space: a taken extent's offset, FREE, or GONE (gaps, retired)."""

    FREE, GONE = -1, -2

    def __init__(self) -> None:
        super().__init__()
        self.extents = Extents(GRAIN)
        self.owner: list[int] = []
        self.taken: dict[int, int] = {}

    def runs(self) -> list[tuple[int, int]]:
        """(length, start) of every run of free grains."""
        runs, start = [], 0
        for end in range(len(self.owner) + 1):
            if end == len(self.owner) or self.owner[end] != self.FREE:
                if end > start:
                    runs.append((end - start, start))
                start = end + 1
        return runs

    @rule(grains=st.integers(1, 12), gap=st.integers(0, 2))
    def grow(self, grains: int, gap: int) -> None:
        offset = self.extents.grow(grains * GRAIN, gap * GRAIN)
        assert offset == (len(self.owner) + gap) * GRAIN
        self.owner += [self.GONE] * gap + [self.FREE] * grains

    @rule(nbytes=st.integers(1, 8 * GRAIN))
    def take(self, nbytes: int) -> None:
        grains = -(-nbytes // GRAIN)
        best = min((run for run in self.runs() if run[0] >= grains), default=None)
        offset = self.extents.take(nbytes)
        if best is None:
            assert offset is None
            return
        start = best[1]
        assert offset == start * GRAIN
        self.owner[start : start + grains] = [offset] * grains
        self.taken[offset] = grains * GRAIN

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.taken)))
        self.extents.give(offset, self.taken.pop(offset))
        self.owner = [self.FREE if owner == offset else owner for owner in self.owner]

    @precondition(lambda self: self.runs())
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        length, start = data.draw(st.sampled_from(self.runs()))
        assert self.extents.is_free(start * GRAIN, length * GRAIN)
        self.extents.retire(start * GRAIN)
        self.owner[start : start + length] = [self.GONE] * length

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), wrong=st.sampled_from([-GRAIN, GRAIN]))
    def give_a_wrong_length(self, data: st.DataObject, wrong: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.taken)))
        with pytest.raises(InvariantError):
            self.extents.give(offset, self.taken[offset] + wrong)

    @invariant()
    def agrees(self) -> None:
        self.extents.validate()
        assert self.extents.used_bytes == sum(self.taken.values())
        assert self.extents.total_bytes == sum(owner != self.GONE for owner in self.owner) * GRAIN
        assert self.extents.largest_free == max(self.runs(), default=(0, 0))[0] * GRAIN


TestExtents = ExtentsAgainstModel.TestCase


def test_best_fit_takes_the_smallest_hole_that_is_large_enough() -> None:
    extents = Extents(1)
    extents.grow(100)
    large, wall, small, _ = [extents.take(n) for n in (40, 5, 20, 35)]
    assert (large, wall, small) == (0, 40, 45)
    extents.give(0, 40)
    extents.give(45, 20)
    assert extents.take(20) == 45


def test_neighbours_are_joined_on_both_sides() -> None:
    extents = Extents(1)
    extents.grow(30)
    for _ in range(3):
        extents.take(10)
    extents.give(0, 10)
    extents.give(20, 10)
    assert extents.take(30) is None
    extents.give(10, 10)
    assert extents.is_free(0, 30)


def test_no_extent_spans_a_gap() -> None:
    extents = Extents(1)
    extents.grow(10)
    extents.grow(10, gap=1)
    assert extents.take(11) is None
    assert extents.largest_free == 10


def test_giving_back_twice_is_refused_and_changes_nothing() -> None:
    extents = Extents(8)
    extents.grow(16)
    extents.take(3)
    extents.give(0, 8)
    with pytest.raises(InvariantError, match="gave back 8 bytes at 0"):
        extents.give(0, 8)
    extents.validate()
    assert extents.used_bytes == 0


def test_validate_notices_broken_books() -> None:
    extents = Extents(8)
    extents.grow(16)
    extents._used = 8
    with pytest.raises(InvariantError, match="used bytes are wrong"):
        extents.validate()
