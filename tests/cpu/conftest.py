"""Every test starts and ends with LMS off, and with books that add up."""

from collections.abc import Iterator

import pytest

import torch_lms
from torch_lms.runtime import api


@pytest.fixture(autouse=True)
def _session_ends() -> Iterator[None]:
    yield
    if torch_lms.is_enabled():
        assert api._running is not None
        api._running.validate()
        torch_lms.disable()
        pytest.fail("the test left LMS on")
