"""What the tests of the decisions share. Nothing here needs torch."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from pager_rig import Rig, new_rig

from torch_lms.residency import Book

# On a machine that is busy with something else an example may take any time.
settings.register_profile("patient", parent=settings.default, deadline=None)
settings.load_profile("patient")


@pytest.fixture
def book() -> Iterator[Book]:
    """An empty book; however the test leaves it, it must add up."""
    book = Book()
    yield book
    book.validate()


@pytest.fixture
def rig_of() -> Iterator[Callable[..., Rig]]:
    """Makes rigs (see ``new_rig``); however the test leaves them, they must be in order."""
    rigs: list[Rig] = []

    def make(*args: Any, **kwargs: Any) -> Rig:
        rigs.append(new_rig(*args, **kwargs))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.check()
