"""What only a real accelerator can show. Without one, all of it is skipped."""

import os
from collections.abc import Iterator

import pytest
import torch

import torch_lms
from tests import accelerator
from torch_lms.runtime import api

# cuBLAS is deterministic only with a workspace of its own, and reads this when it starts
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(scope="session", autouse=True)
def device() -> torch.device:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        pytest.skip("no accelerator")
    return torch.device(found.type, torch.accelerator.current_device_index())


@pytest.fixture
def _times_count(device: torch.device) -> None:
    """For tests of how long something takes."""
    if device.type == accelerator.NAME:
        pytest.skip("on the test accelerator copies and kernels share the host's cores")


@pytest.fixture(scope="session", autouse=True)
def _deterministic(device: torch.device) -> Iterator[None]:
    """Kernels that give the same bits each time, where there are such."""
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    cudnn.deterministic, cudnn.benchmark = True, False
    yield
    torch.use_deterministic_algorithms(before[0])
    cudnn.deterministic, cudnn.benchmark = before[1:]


@pytest.fixture(autouse=True)
def _session_ends() -> Iterator[None]:
    """Every test ends with LMS off, and with books that add up."""
    yield
    if torch_lms.is_enabled():
        assert api._running is not None
        api._running.validate()
        torch_lms.disable()
        pytest.fail("the test left LMS on")
