"""Operations that choose an algorithm by the memory that they find free, as cuDNN's convolutions do (N28)."""

import logging
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import torch_lms
from torch_lms.runtime import allocator

MIB = 1 << 20
CAPACITY = 96 * MIB
WORKSPACE = 32 * MIB
SHAPE = (1, 4, 512, 512)
"""A page of four MiB."""


@pytest.fixture
def workspace() -> int:
    """Bytes that the best algorithm takes."""
    return WORKSPACE


@pytest.fixture
def small(module: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The device has no more than its capacity."""
    monkeypatch.setattr("torch_lms.runtime.limits._MIN_MARGIN", MIB)
    module.empty_cache()
    module.set_per_process_memory_fraction(CAPACITY / module.mem_get_info(device)[1], device)
    yield
    module.set_per_process_memory_fraction(1.0, device)


@pytest.fixture
def choices(workspace: int, small: None, device: torch.device) -> Iterator[list[str]]:
    """A convolution that wants a workspace, and rounds in another way without; the algorithms that it took."""
    chosen: list[str] = []

    def convolution(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
        try:
            torch.empty(workspace, dtype=torch.uint8, device=device)
            chosen.append("best")
            return x * 2
        except torch.OutOfMemoryError:
            allocator._failures += 1  # as CUDA's tells
            chosen.append("other")
            return x * 2 + 1

    library = torch.library.Library("aten", "IMPL")
    library.impl("convolution_overrideable", convolution, "PrivateUse1")
    yield chosen
    library._destroy()


def layers(device: torch.device, count: int) -> list[torch.Tensor]:
    """All inputs are kept, as autograd keeps them."""
    weight = torch.ones(4, 4, 1, 1, device=device)
    kept = [torch.ones(SHAPE, device=device)]
    for _ in range(count):
        kept.append(torch.nn.functional.conv2d(kept[-1], weight))
    return kept


def test_the_best_algorithm_is_found(choices: list[str], device: torch.device) -> None:
    with torch_lms.session(min_size=1024, device=device, policy="reactive") as lms:
        kept = layers(device, 40)
        assert [float(tensor.flatten()[-1]) for tensor in kept] == [2.0**n for n in range(41)]
        assert lms.stats().evictions > 0
        assert lms.stats().limit_bytes < CAPACITY - 0.9 * WORKSPACE
        del kept
    assert set(choices) == {"best"}


@pytest.mark.parametrize("workspace", [2 * CAPACITY])
def test_where_it_is_not_to_be_had_that_is_said(
    choices: list[str], device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), torch_lms.session(min_size=1024, device=device, policy="reactive") as lms:
        layers(device, 8)
        lms.step()
    assert set(choices) == {"other"}
    assert "found no memory for 8 requests and went on without" in caplog.text


def test_an_operator_of_another_library_finds_what_it_takes_beside(small: None, device: torch.device) -> None:
    """It cannot run twice, for nobody knows what it has done when it finds no memory."""
    calls = 0

    def doubled(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        return x * 2

    with torch.library._scoped_library("torch_lms_workspaces", "FRAGMENT") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", doubled, "PrivateUse1")
        library.impl("doubled", torch.empty_like, "Meta")
        with torch_lms.session(min_size=1024, device=device, policy="reactive") as lms:
            kept = [torch.ones(SHAPE, device=device)]
            for _ in range(40):
                kept.append(torch.ops.torch_lms_workspaces.doubled(kept[-1]))
            assert [float(tensor.flatten()[-1]) for tensor in kept] == [2.0**n for n in range(41)]
            assert calls == 40
            assert lms.stats().evictions > 0
            assert lms.stats().limit_bytes < CAPACITY - 0.9 * WORKSPACE
            del kept
