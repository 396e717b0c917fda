"""Plans that are kept in a directory, from one run to the next."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from made_traces import THERE_AND_BACK, random_training

from torch_lms.engine import Speeds
from torch_lms.errors import UsageError
from torch_lms.planner import make_plan
from torch_lms.planner.kept_plans import KeptPlans, kept_in
from torch_lms.policy import Plan
from torch_lms.residency import PageId
from torch_lms.trace import Trace

SPEEDS = Speeds(10.0, 10.0)
TRACE = random_training(3)


class Counted:
    """Makes plans as ours are made, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, trace: Trace, limit: int, ids: Mapping[PageId, int], speeds: Speeds) -> Plan:
        self.made += 1
        return make_plan(trace, limit, ids, speeds)


def limit_of(trace: Trace) -> int:
    return max(page.nbytes for page in trace.pages) * 6


def test_the_next_run_makes_none(tmp_path: Path) -> None:
    maker, limit = Counted(), limit_of(TRACE)
    first = KeptPlans(maker, tmp_path)(TRACE, limit, {7: 0}, SPEEDS)
    again = KeptPlans(maker, tmp_path)(TRACE, limit, {9: 0}, SPEEDS)
    assert maker.made == 1
    assert any(first.evicts) or first.recomputations
    assert (again.evicts, again.fetches, again.away) == (first.evicts, first.fetches, first.away)
    assert again.recomputations == first.recomputations
    assert again.known == {9: 0}


def test_a_first_plan_is_not_kept_and_the_next_run_has_the_better_one_at_once(tmp_path: Path) -> None:
    quick, maker, limit = Counted(), Counted(), limit_of(TRACE)
    first = KeptPlans(maker, tmp_path, quick)
    first(TRACE, limit, {}, SPEEDS)
    assert (quick.made, maker.made) == (1, 0)
    assert not list(tmp_path.iterdir())
    better = KeptPlans(maker, tmp_path)(TRACE, limit, {}, SPEEDS)
    assert (quick.made, maker.made) == (1, 1)
    assert first(TRACE, limit, {}, SPEEDS) == better
    assert (quick.made, maker.made) == (1, 1)


def test_other_steps_limits_and_makers_have_plans_of_their_own(tmp_path: Path) -> None:
    maker, limit = Counted(), limit_of(TRACE)
    plans = KeptPlans(maker, tmp_path)
    plans(TRACE, limit, {}, SPEEDS)
    plans(THERE_AND_BACK, 20, {}, SPEEDS)
    assert maker.made == 2
    plans(TRACE, limit - 1, {}, SPEEDS)  # a plan for more would not keep to it
    assert maker.made == 3
    plans(TRACE, limit * 2, {}, SPEEDS)
    assert maker.made == 4
    KeptPlans(make_plan, tmp_path)(TRACE, limit * 2, {}, SPEEDS)
    assert json.loads(next(path for path in tmp_path.iterdir() if "make_plan" in path.read_text()).read_text())


def _of_another_step(kept: dict[str, Any]) -> None:
    kept["evicts"] = [[999], *kept["evicts"][1:]]


def _too_short(kept: dict[str, Any]) -> None:
    del kept["fetches"][0]


@pytest.mark.parametrize("damage", [_of_another_step, _too_short, dict.clear])
def test_a_file_that_is_none_of_ours_costs_a_plan(
    damage: Callable[[dict[str, Any]], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    maker, limit = Counted(), limit_of(TRACE)
    plans = KeptPlans(maker, tmp_path)
    expected = plans(TRACE, limit, {}, SPEEDS)
    (path,) = tmp_path.iterdir()
    kept = json.loads(path.read_text())
    damage(kept)
    path.write_text(json.dumps(kept))
    with caplog.at_level(logging.WARNING, "torch_lms"):
        assert plans(TRACE, limit, {}, SPEEDS) == expected
    assert maker.made == 2
    assert "cannot be used, and is made anew" in caplog.text
    assert plans(TRACE, limit, {}, SPEEDS) == expected
    assert maker.made == 2


def test_where_plans_are_kept(tmp_path: Path) -> None:
    assert kept_in({}) is None
    assert kept_in({"TORCH_LMS_PLANS": str(tmp_path / "new")}) == tmp_path / "new"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="TORCH_LMS_PLANS must be a directory"):
        kept_in({"TORCH_LMS_PLANS": str(tmp_path / "file")})
