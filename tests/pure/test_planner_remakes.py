"""What is made again instead of being moved, on steps written by hand."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from torch_lms.planner import Gap, Speeds, gaps_of, remake
from torch_lms.planner.room import Room
from torch_lms.policy import Remade
from torch_lms.trace import Trace, TracedOp, TracedPage

SLOW, FAST = Speeds(1.0, 1.0), Speeds(1e9, 1e9)


class Op(NamedTuple):
    """``makes`` from ``takes``, and writes ``writes`` of these."""

    takes: Sequence[int]
    makes: Sequence[int] = ()
    writes: Sequence[int] = ()
    is_repeatable: bool = True


def traced(ops: Sequence[Op], constants: Sequence[int] = (0,), nbytes: int = 10) -> Trace:
    """A step; pages that are ``constants`` live before and after, each other from its first use to its last."""
    uses = [{*op.takes, *op.makes} for op in ops]
    count = 1 + max(page for used in uses for page in used)
    pages = []
    for page in range(count):
        at = [number for number, used in enumerate(uses) if page in used]
        if page in constants:
            pages.append(TracedPage(nbytes, -1, len(ops), "", page))
        else:
            pages.append(TracedPage(nbytes, at[0], at[-1]))
    return Trace(
        tuple(pages),
        tuple(TracedOp("op", tuple(o.takes), tuple(o.writes), tuple(o.makes), 0, 1.0, o.is_repeatable) for o in ops),
    )


def gap_of(trace: Trace, page: int, after: int) -> Gap:
    return next(gap for gap in gaps_of(trace) if (gap.page, gap.after) == (page, after))


def remade(trace: Trace, *gaps: Gap, limit: int = 1000, speeds: Speeds = SLOW) -> tuple[list[Gap], list[Remade]]:
    room = Room(trace, limit)
    for gap in gaps:
        room.take(gap)
    return remake(trace, gaps, room, speeds)


IDLE = Op([0])
CHAIN = [Op([0], [1]), Op([1], [2]), Op([2], [3]), IDLE, IDLE, Op([2]), Op([1])]
"""1 from 0, 2 from 1, 3 from 2; then 2 is needed, and 1."""


def test_from_what_is_there() -> None:
    trace = traced(CHAIN)
    moved, found = remade(trace, gap_of(trace, 2, 2))
    assert moved == []
    assert found == [Remade(page=2, after=2, before=5, ops=(1,), inputs=(1,), extra_bytes=0)]


def test_what_is_away_comes_back_earlier() -> None:
    trace = traced(CHAIN)
    one, two = gap_of(trace, 1, 1), gap_of(trace, 2, 2)
    assert (one.before, two.before) == (6, 5)
    moved, found = remade(trace, one, two, speeds=Speeds(0.06, 1e9))
    assert [(remade.page, remade.before, remade.inputs) for remade in found] == [(2, 5, (1,)), (1, 5, (0,))]
    assert moved == []
    no_more_room = sum(page.nbytes for page in trace.pages[:3]) - 1
    moved, found = remade(trace, one, two, limit=no_more_room)
    assert (moved, [remade.page for remade in found]) == ([two], [1])


def test_what_died_is_made_again_on_the_way() -> None:
    trace = traced([Op([0], [1]), Op([1], [2]), Op([2], [3]), IDLE, Op([2])])
    _, found = remade(trace, gap_of(trace, 2, 2))
    assert found == [Remade(2, 2, 4, ops=(0, 1), inputs=(0,), extra_bytes=10)]


def test_what_was_written_since_is_not_taken_for_what_it_was() -> None:
    parameter_updated = traced([Op([0], [1]), Op([1]), IDLE, Op([0], writes=[0]), Op([1])])
    assert remade(parameter_updated, gap_of(parameter_updated, 1, 1))[1] == []
    activation_in_place = traced([Op([0], [1]), Op([1], [2]), Op([1], writes=[1]), IDLE, Op([2]), Op([1])])
    _, found = remade(activation_in_place, gap_of(activation_in_place, 2, 1))
    assert found == [Remade(2, 1, 4, ops=(0, 1), inputs=(0,), extra_bytes=10)]


def test_what_was_written_in_place_is_written_again() -> None:
    trace = traced([Op([0], [1]), Op([1], writes=[1]), Op([1]), IDLE, Op([1])])
    _, found = remade(trace, gap_of(trace, 1, 2))
    assert found == [Remade(1, 2, 4, ops=(0, 1), inputs=(0,), extra_bytes=0)]


@pytest.mark.parametrize(
    "ops",
    [
        [Op([0], [1], is_repeatable=False), Op([1]), IDLE, Op([1])],
        [Op([0], [1]), Op([1], writes=[1], is_repeatable=False), IDLE, Op([1])],
        [Op([2], [1], is_repeatable=True), Op([1]), Op([2], writes=[2]), Op([1])],
    ],
    ids=["made by chance", "written by chance", "made from what is written"],
)
def test_what_cannot_be_made_again_is_moved(ops: list[Op]) -> None:
    trace = traced(ops, constants=(0, 2))
    gap = gap_of(trace, 1, 1)
    assert remade(trace, gap) == ([gap], [])


def test_what_is_dearer_to_make_than_to_move_is_moved() -> None:
    trace = traced(CHAIN)
    gap = gap_of(trace, 2, 2)
    assert remade(trace, gap, speeds=FAST) == ([gap], [])
    assert remade(trace, gap, speeds=Speeds(20.1, 20.1)) == ([gap], [])
    assert remade(trace, gap, speeds=Speeds(19.9, 19.9))[0] == []


def test_no_room_for_what_is_made_on_the_way() -> None:
    trace = traced([Op([0], [1]), Op([1], [2]), Op([2], [3]), IDLE, Op([2])])
    gap = gap_of(trace, 2, 2)
    assert len(remade(trace, gap, limit=30)[1]) == 1
    assert remade(trace, gap, limit=29) == ([gap], [])
