"""Every test starts and ends with LMS off, and with books that add up."""

import signal
from collections.abc import Iterator

import pytest
import torch

import torch_lms
from torch_lms.runtime import api

torch.backends.disable_global_flags()  # as PyTorch's own tests do when they are imported: for all tests, or for none

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _session_ends() -> Iterator[None]:
    yield
    if torch_lms.is_enabled():
        assert api._running is not None
        api._running.validate()
        torch_lms.disable()
        pytest.fail("the test left LMS on")


@pytest.fixture(params=["native", "python"])
def _each_interposer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs by each."""
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", request.param)
