"""What only a real accelerator can show. Without one, all of it is skipped."""

import gc
import os
from collections.abc import Callable, Iterator

import pytest
import torch
from bits import same_bits

import torch_lms
from tests import accelerator
from torch_lms.runtime import api

Training = Callable[[torch.device], list[torch.Tensor]]

# cuBLAS is deterministic only with a workspace of its own, and reads this when it starts
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(scope="session", autouse=True)
def device() -> torch.device:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        pytest.skip("no accelerator")
    return torch.device(found.type, torch.accelerator.current_device_index())


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("needs CUDA")
    return device


@pytest.fixture
def allow(device: torch.device) -> Iterator[Callable[[int], None]]:
    """Lets the process take so many bytes more of the device, and no more."""
    module = torch.get_device_module(device)

    def allow(nbytes: int) -> None:
        gc.collect()
        module.empty_cache()
        whole = module.mem_get_info(device)[1]
        module.set_per_process_memory_fraction((module.memory_reserved(device) + nbytes) / whole, device)

    yield allow
    module.set_per_process_memory_fraction(1.0, device)
    gc.collect()
    module.empty_cache()


@pytest.fixture(scope="session")
def reference(device: torch.device) -> Callable[[Training, int], tuple[list[torch.Tensor], int]]:
    """Finds the results of a training without LMS, and its demand in pages of a smallest size."""

    def reference(training: Training, min_size: int) -> tuple[list[torch.Tensor], int]:
        expected = training(device)
        if not same_bits(training(device), expected):
            pytest.skip("two runs without LMS differ on this device")
        with torch_lms.session(limit="64GiB", min_size=min_size) as lms:
            unlimited = training(device)
            demand = lms.stats().peak_resident_bytes
            assert lms.stats().evicted_bytes == 0
        assert same_bits(unlimited, expected)
        return expected, demand

    return reference


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
