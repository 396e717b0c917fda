"""Which pages a plan has away: the limit holds, and next to nothing is moved that need not be."""

from dataclasses import replace

import numpy as np
import pytest
from made_traces import random_training

from torch_lms.planner import choose, floor_bytes, gaps_of, moved_out, optimum_bytes
from torch_lms.trace import Trace, TracedOp, TracedPage, demand_curve


def resident(trace: Trace, limit: int) -> np.ndarray:
    """Bytes on the device at each operation, by the plan, counted anew."""
    there = np.array(demand_curve(trace).nbytes)
    for gap in choose(trace, limit):
        for first, last in gap.spans:
            there[first : last + 1] -= gap.nbytes
    return there


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [1, 2, 4, 8])
def test_the_limit_holds_wherever_an_operation_alone_allows_it(seed: int, share: int) -> None:
    trace = random_training(seed)
    limit = demand_curve(trace).demand_bytes // share
    for position, nbytes in enumerate(resident(trace, limit)):
        op = trace.ops[position]
        needed = sum(trace.pages[page].nbytes for page in {*op.pages, *op.creates})
        stuck = sum(  # away before its last use or after it, never
            page.nbytes
            for number, page in enumerate(trace.pages)
            if page.born <= position <= page.dead
            and number not in {*op.pages, *op.creates}
            and not any(a <= position <= b for gap in gaps_of(trace) if gap.page == number for a, b in gap.spans)
            and not any(
                a <= position <= b
                for gap in gaps_of(trace)
                if trace.pages[gap.page].successor == number
                for a, b in gap.spans
            )
        )
        assert nbytes <= max(limit, needed + stuck)


def test_nothing_moves_while_everything_fits() -> None:
    trace = random_training(0)
    assert choose(trace, demand_curve(trace).demand_bytes) == []
    assert floor_bytes(trace, demand_curve(trace).demand_bytes) == 0


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [2, 4])
def test_within_5_percent_of_the_optimum(seed: int, share: int) -> None:
    trace = random_training(seed)
    limit = demand_curve(trace).demand_bytes // share
    floor, optimum, moved = floor_bytes(trace, limit), optimum_bytes(trace, limit), moved_out(choose(trace, limit))
    assert floor - 1e-6 <= optimum <= moved + 1e-6
    assert moved <= 1.05 * optimum


def test_a_plan_is_the_same_each_time() -> None:
    trace = random_training(3)
    limit = demand_curve(trace).demand_bytes // 3
    assert choose(trace, limit) == choose(trace, limit)


@pytest.mark.parametrize("seed", range(4))
def test_where_nothing_may_stay_all_is_away(seed: int) -> None:
    trace = random_training(seed)
    assert choose(trace, 0) == gaps_of(trace)


def beside_what_was_kept(seed: int) -> Trace:
    """A step of a program that keeps results of earlier ones: no operation uses them."""
    trace = random_training(seed)
    kept = [TracedPage(100, -1, len(trace.ops), successor=len(trace.pages) + n) for n in range(20)]
    return replace(trace, pages=(*trace.pages, *kept))


@pytest.mark.parametrize("seed", range(4))
def test_what_no_operation_uses_is_away_before_anything_moves(seed: int) -> None:
    trace, plain = beside_what_was_kept(seed), random_training(seed)
    demand = demand_curve(plain).demand_bytes
    assert moved_out(choose(trace, demand)) == 0
    assert moved_out(choose(trace, demand + 1000)) == 0
    assert len(choose(trace, demand + 1000)) == 10
    assert moved_out(choose(trace, demand // 2)) == moved_out(choose(plain, demand // 2))


def test_weights_that_nothing_writes_move_out_once_and_for_all() -> None:
    weights = [TracedPage(50, -1, 4, successor=n) for n in range(4)]
    trace = Trace(tuple(weights), tuple(TracedOp("forward", (n,), (), (), 0, 1.0) for n in range(4)))
    chosen = choose(trace, 100)
    assert chosen
    assert moved_out(chosen) == 0
    assert floor_bytes(trace, 100) == 0


def test_what_must_stay_stays() -> None:
    trace = random_training(5)
    pinned = Trace(tuple(page._replace(unpageable="shared memory") for page in trace.pages), trace.ops)
    assert gaps_of(pinned) == []
    assert choose(pinned, 1) == []
