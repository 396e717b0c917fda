"""What is held while a page is recomputed (N16)."""

from types import SimpleNamespace
from typing import Any

from torch_lms.runtime.recompute import _Program


class Repeated:
    """A call that makes ``made`` from ``used``; notes what is there when it runs."""

    def __init__(self, used: list[int], made: int) -> None:
        self.pages = [SimpleNamespace(page=page) for page in used]
        self.results = [(0, SimpleNamespace(entry=SimpleNamespace(page=made)))]
        self.there: set[int] = set()

    def repeat(self, storages: dict[int, Any]) -> None:
        self.there = set(storages)
        storages[self.results[0][1].entry.page] = object()


def test_what_is_made_on_the_way_is_freed_after_its_last_use() -> None:
    calls: list[Any] = [Repeated([0], 1), Repeated([1], 2), Repeated([1, 2], 3), Repeated([3], 4), Repeated([4], 5)]
    storages: dict[int, Any] = {0: object()}
    program = _Program(4, calls, [], storages)
    program.run()
    assert [call.there - {0} for call in calls] == [set(), {1}, {1, 2}, {3}, {4}]
    assert set(storages) == {0}
