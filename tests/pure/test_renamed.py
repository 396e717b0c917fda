"""Old names of public attributes go on working, and warn."""

from typing import Any

import pytest

from torch_lms.policy import Plan
from torch_lms.trace import Trace, TracedPage

TRACE = Trace((), ())
PLAN = Plan(TRACE, 1, ((0,),), ((1,),), frozenset(), {}, ())


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (TracedPage(8, 0, 1, successor=3), "becomes", "successor"),
        (PLAN, "leaves", "evicts"),
        (PLAN, "comes", "fetches"),
        (PLAN, "remade", "recomputations"),
    ],
)
def test_the_old_name_gives_the_same_and_warns(owner: Any, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{type(owner).__name__}.{old} is called .*{new} now"):
        assert getattr(owner, old) == getattr(owner, new)
