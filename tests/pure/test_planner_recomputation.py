"""How pages are recomputed, on steps written by hand."""

import pytest
from made_traces import Op, traced

from torch_lms.planner import Gap, Producers, gaps_of
from torch_lms.policy import Recomputation
from torch_lms.trace import Trace

IDLE = Op([0])
CHAIN = [Op([0], [1]), Op([1], [2]), Op([2], [3]), IDLE, IDLE, Op([2]), Op([1])]
"""1 from 0, 2 from 1, 3 from 2; then 2 is needed, and 1."""


def gap_of(trace: Trace, page: int, after: int) -> Gap:
    return next(gap for gap in gaps_of(trace) if (gap.page, gap.after) == (page, after))


def recomputation(trace: Trace, page: int, after: int) -> Recomputation | None:
    return Producers(trace).recomputation(gap_of(trace, page, after))


def test_from_what_is_there() -> None:
    assert recomputation(traced(CHAIN), 2, 2) == Recomputation(
        page=2, after=2, before=5, ops=(1,), inputs=(1,), extra_bytes=0
    )


def test_what_died_is_recomputed_on_the_way() -> None:
    trace = traced([Op([0], [1]), Op([1], [2]), Op([2], [3]), IDLE, Op([2])])
    assert recomputation(trace, 2, 2) == Recomputation(2, 2, 4, ops=(0, 1), inputs=(0,), extra_bytes=10)


def test_what_is_made_on_the_way_is_there_until_its_last_use() -> None:
    chain = [Op([0], [1]), Op([1], [2]), Op([2], [3]), Op([3], [4]), Op([4], [5]), IDLE, Op([4])]
    expected = Recomputation(4, 4, 6, ops=(0, 1, 2, 3), inputs=(0,), extra_bytes=10)
    assert recomputation(traced(chain), 4, 4) == expected
    joined = [Op([0], [1]), Op([1], [2]), Op([2], [3]), Op([1, 3], [4]), Op([4], [5]), IDLE, Op([4])]
    assert recomputation(traced(joined), 4, 4) == expected._replace(extra_bytes=20)


def test_what_was_written_since_is_not_taken_for_what_it_was() -> None:
    parameter_updated = traced([Op([0], [1]), Op([1]), IDLE, Op([0], writes=[0]), Op([1])])
    assert recomputation(parameter_updated, 1, 1) is None
    activation_in_place = traced([Op([0], [1]), Op([1], [2]), Op([1], writes=[1]), IDLE, Op([2]), Op([1])])
    assert recomputation(activation_in_place, 2, 1) == Recomputation(2, 1, 4, ops=(0, 1), inputs=(0,), extra_bytes=10)


def test_what_was_written_in_place_is_written_again() -> None:
    trace = traced([Op([0], [1]), Op([1], writes=[1]), Op([1]), IDLE, Op([1])])
    assert recomputation(trace, 1, 2) == Recomputation(1, 2, 4, ops=(0, 1), inputs=(0,), extra_bytes=0)


def living_on(ops: list[Op], dead: dict[int, int]) -> Trace:
    """The step, in which pages die after these operations, not after their last use."""
    trace = traced(ops)
    return Trace(tuple(p._replace(dead=dead.get(n, p.dead)) for n, p in enumerate(trace.pages)), trace.ops)


def test_what_nobody_needs_is_recomputable_as_long_as_it_lives() -> None:
    ops = [Op([0], [1]), Op([1], [2]), IDLE, Op([1]), IDLE]
    expected = Recomputation(2, after=1, before=-1, ops=(1,), inputs=(1,), extra_bytes=0)
    assert recomputation(living_on(ops, {2: 3}), 2, 1) == expected
    longer = expected._replace(ops=(0, 1), inputs=(0,), extra_bytes=10)
    assert recomputation(living_on(ops, {2: 4}), 2, 1) == longer
    ops[0] = ops[0]._replace(is_repeatable=False)
    assert recomputation(living_on(ops, {2: 4}), 2, 1) is None
    written_last = [Op([0], [1]), Op([1], [2]), IDLE, Op([1], writes=[1])]
    assert recomputation(living_on(written_last, {2: 3}), 2, 1) == longer


@pytest.mark.parametrize(
    "ops",
    [
        [Op([0], [1], is_repeatable=False), Op([1]), IDLE, Op([1])],
        [Op([0], [1]), Op([1], writes=[1], is_repeatable=False), IDLE, Op([1])],
        [Op([2], [1], is_repeatable=True), Op([1]), Op([2], writes=[2]), Op([1])],
    ],
    ids=["made by chance", "written by chance", "made from what is written"],
)
def test_what_cannot_be_recomputed(ops: list[Op]) -> None:
    assert recomputation(traced(ops, constants=(0, 2)), 1, 1) is None


def test_what_is_needed_in_the_next_step_is_not_recomputed_there() -> None:
    """Page 1 becomes page 2, which the next step needs later than this one uses page 1; page 3 is not there by then."""
    trace = traced([Op([0], [3]), Op([3], [1]), Op([1]), IDLE, Op([2]), IDLE], constants=(0, 2))
    kept = trace.pages[1]._replace(dead=6, successor=2)
    old = trace.pages[2]._replace(dead=4, successor=-1)
    input_ = trace.pages[3]._replace(dead=6)
    living = Trace((trace.pages[0], kept, old, input_), trace.ops)
    gap = gap_of(living, 1, 2)
    assert (gap.before, gap.spans, gap.wraps) == (4, ((3, 5), (0, 3)), True)
    assert recomputation(living, 1, 2) is None
