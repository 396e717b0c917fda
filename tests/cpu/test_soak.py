"""Nothing grows while steps fail and shapes change, without the garbage collector (``python -m tests.soak``)."""

from collections import Counter
from dataclasses import fields

import pytest

from tests.soak import Soak, Window, soak
from torch_lms.runtime.stats import Stats


def test_nothing_grows() -> None:
    run = soak(150)
    assert run.growth() == []
    assert run.raised == {"forward": 15, "backward": 15, "optimizer": 15, "operation": 15}
    assert len(run.first.rss) == len(run.last.rss) == 65
    assert (len(run.first.pages), len(run.last.pages)) == (6, 7)
    assert 0 < run.limit_bytes <= run.demand_bytes // 3
    assert run.stats.evictions > 100
    assert run.stats.fetches > 100
    assert min(run.last.spill_bytes) > 0


def seen(**changed: int) -> Window:
    """Every figure is 1,000 at one time and 1,010 at another, but for what is ``changed``."""
    window = Window()
    for name in (it.name for it in fields(Window)):
        getattr(window, name).extend((1000, changed.get(name, 1010)))
    return window


@pytest.mark.parametrize(
    ("changed", "grew"),
    [({}, ""), ({"rss": 1100}, ""), ({"rss": 1120}, "rss"), ({"pages": 1009}, "")]
    + [({it.name: 1011}, it.name) for it in fields(Window) if it.name != "rss"],
    ids=str,
)
def test_growth_beyond_the_spread_is_noticed(changed: dict[str, int], grew: str) -> None:
    run = Soak(150, 3, 1, Counter(), seen(), seen(**changed), Stats())
    assert [growth.split(":")[0] for growth in run.growth()] == ([grew] if grew else [])
