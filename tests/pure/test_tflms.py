"""Plans by TFLMS's rules, on steps made by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_traces import Op, random_training, traced

from torch_lms.engine import Speeds
from torch_lms.errors import UsageError
from torch_lms.planner import plan_maker
from torch_lms.policy import Plan
from torch_lms.trace import Trace, TracedOp, demand_curve

CHAIN = traced(
    [
        *(Op([0], [1]), Op([0], [2]), Op([0, 1], [3]), Op([0], [4]), Op([0, 3]), Op([0, 2]), Op([0])),
        *(Op([0, 1]), Op([0]), Op([0, 1])),
    ]
)
"""Page 1 is used by the operations 0, 2, 7 and 9; page 2 by 1 and 5; page 3 by 2 and 4. Five pages of 10 bytes."""


def planned(trace: Trace, limit: int, **tune: Any) -> Plan:
    return plan_maker("tflms2", tune)(trace, limit, {}, Speeds(1e9, 1e9))


def gone(plan: Plan) -> set[tuple[int, int]]:
    """Pages, and the operation after which they leave."""
    return {(page, after) for after, pages in enumerate(plan.evicts) for page in pages}


def fetched(plan: Plan) -> set[tuple[int, int]]:
    return {(page, at) for at, pages in enumerate(plan.fetches) for page in pages}


@pytest.mark.parametrize(
    ("tune", "expected"),
    [
        ({"swapout_threshold": 1, "swapin_groupby": 0}, {(1, 0), (1, 2), (1, 7), (2, 1), (3, 2)}),
        ({"swapout_threshold": 2, "swapin_groupby": 0}, {(1, 2), (1, 7), (2, 1)}),
        ({"swapout_threshold": 4, "swapin_groupby": 0}, {(1, 2), (1, 7)}),
        ({"swapout_threshold": 4, "swapin_groupby": 2}, {(1, 2)}),
        ({"swapout_threshold": 9, "swapin_groupby": 0}, set()),
    ],
)
def test_what_leaves(tune: Mapping[str, int], expected: set[tuple[int, int]]) -> None:
    """Distances count from where the page was written; groups, from the use before."""
    assert gone(planned(CHAIN, 10, swapin_ahead=1, **tune)) == expected


@pytest.mark.parametrize(
    ("ahead", "sync_mode", "expected"),
    [(1, 0, 6), (3, 0, 4), (3, 1, 4), (4, 0, None), (1, 2, None), (1, 3, None)],
)
def test_what_comes_back_early(ahead: int, sync_mode: int, expected: int | None) -> None:
    """Where the gap is longer. If the program waits for copies in, none is early."""
    plan = planned(CHAIN, 10, swapout_threshold=6, swapin_groupby=2, swapin_ahead=ahead, sync_mode=sync_mode)
    assert gone(plan) == {(1, 2)}
    assert fetched(plan) == ({(1, expected)} if expected is not None else set())
    assert plan.waits_for_evictions is (sync_mode in (1, 3))


def test_weights_stay_and_what_fits_moves_nothing() -> None:
    assert not any(0 in pages for pages in planned(CHAIN, 10, swapout_threshold=1).evicts)
    assert not gone(planned(CHAIN, demand_curve(CHAIN).demand_bytes, swapout_threshold=1))


def test_version_1_takes_the_first_that_backward_needs() -> None:
    ops: list[TracedOp] = [op._replace(name="aten::a_backward" if n > 3 else "a") for n, op in enumerate(CHAIN.ops)]
    trace = Trace(CHAIN.pages, tuple(ops))
    assert gone(planned(trace, 10, n_tensors=-1)) == {(1, 2), (2, 1), (3, 2)}
    assert gone(planned(trace, 10, n_tensors=1)) == {(2, 1)}
    assert gone(planned(trace, 10, n_tensors=0)) == set()
    assert fetched(planned(trace, 10, lb=2)) == {(1, 5), (2, 3)}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_chosen_is_the_least_that_fits(seed: int) -> None:
    """The next larger threshold does not fit; a limit that is raised lets as little leave, or less."""
    trace = random_training(seed)
    demand = demand_curve(trace).demand_bytes
    counts = [len(gone(planned(trace, int(demand * share)))) for share in (0.6, 0.8, 0.95, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0
    most = len(gone(planned(trace, int(demand * 0.6), swapout_threshold=1, swapin_groupby=0)))
    assert counts[0] <= most


def test_a_file_serves_steps_of_its_kind_and_limit(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    trace = random_training(3)
    limit = int(demand_curve(trace).demand_bytes * 0.7)
    first = planned(trace, limit, autotune_plan=file)
    assert planned(trace, limit, autotune_plan=file) == first
    before = file.read_text()
    planned(trace, int(limit * 0.9), autotune_plan=file)
    assert file.read_text() != before
    given = planned(trace, limit, autotune_plan=file, swapout_threshold=1)
    assert given == planned(trace, limit, swapout_threshold=1) != first
    planned(random_training(4), limit, autotune_plan=file)
    assert file.read_text().count("swapout_threshold") == 3

    file.write_text("{}")
    with pytest.raises(UsageError, match="expected a 'torch-lms autotuned plan'"):
        planned(trace, limit, autotune_plan=file)
