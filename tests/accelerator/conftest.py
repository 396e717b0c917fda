"""Tests on the test accelerator."""

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

import torch_lms
from tests import accelerator
from torch_lms.runtime import api


@pytest.fixture(scope="session", autouse=True)
def module(pytestconfig: pytest.Config) -> ModuleType:
    """Of the device."""
    current = torch.accelerator.current_accelerator()
    if current is not None and current.type == accelerator.NAME:
        return accelerator.install()
    asked_alone = "run by themselves, or with tests/gpu: python -m pytest tests/accelerator tests/gpu"
    pytest.skip(pytestconfig.stash.get(accelerator.WHY_NOT, asked_alone))


@pytest.fixture(scope="session")
def device(module: ModuleType) -> torch.device:
    return torch.device(accelerator.NAME, 0)


@pytest.fixture(autouse=True)
def _ends_as_it_began(module: ModuleType) -> Iterator[None]:
    """Every test ends with LMS off, all streams at work at once, and the whole capacity. In none do two streams use the
    same memory without an order.
    """
    module.watch_races(True)
    yield
    races = module.take_races()
    module.watch_races(False)
    module.schedule("eager")
    module.set_poison_at_free(True)
    for index in range(module.device_count()):
        module.synchronize(index)
        module.set_capacity(accelerator.CAPACITY, index)
    if torch_lms.is_enabled():
        assert api._running is not None
        api._running.validate()
        torch_lms.disable()
        pytest.fail("the test left LMS on")
    assert races == []
