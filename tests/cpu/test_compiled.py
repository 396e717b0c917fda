"""Regions compiled by `torch.compile` (N11): they stay compiled, and their tensors are paged in between."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from bits import same_bits
from torch import nn
from torch._inductor.output_code import CompiledFxGraph

import torch_lms

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")

WIDTH = 64
NO_MEMORY = "DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"


class Residual(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(dropout), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + x


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x))


@pytest.fixture(autouse=True)
def _starts_afresh() -> Iterator[None]:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()


def training(compiled: bool = True, dropout: float = 0.0, steps: int = 4) -> tuple[Callable[[], Any], nn.Module]:
    """A function that trains two blocks, compiled one by one, from the same start whenever it is called."""
    model = nn.Sequential(Residual(dropout), Residual(dropout))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    if compiled:
        for block in model:
            block.compile(fullgraph=True)

    def run() -> list[torch.Tensor]:
        model.load_state_dict(start)
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(128, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
        return [*losses, *(value.clone() for value in model.state_dict().values())]

    return run, model


def test_regions_stay_compiled_and_equal() -> None:
    run, _ = training()
    expected = run()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch_lms.session(limit=0, min_size=1) as lms:
        assert same_bits(run(), expected)
        lms.validate()
        assert lms.stats().evictions > 0
    assert same_bits(run(), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= graphs + 2  # at most once more, never eager


def test_what_a_region_returns_can_leave_at_once() -> None:
    """Among that is what it has saved for its gradients."""
    model = Residual()
    model.compile(fullgraph=True)
    x = torch.randn(128, WIDTH)
    with torch_lms.session(limit="1GB", min_size=1024) as lms:
        for _ in range(2):
            y = model(x)
            before = lms.stats().resident_bytes
            lms.reclaim()
            assert lms.stats().resident_bytes == 0
            assert before >= 3 * y.nbytes
            y.sum().backward()


def test_steps_with_regions_are_planned() -> None:
    run, _ = training(steps=8)
    expected = run()
    with torch_lms.session(limit="1GB", min_size=1024) as lms:
        run()
        demand = lms.stats().demand_bytes
    with torch_lms.session(limit=demand // 2, min_size=1024) as lms:
        assert same_bits(run(), expected)
        lms.validate()
        stats = lms.stats()
        names = {op.name for op in lms.trace().ops}
    assert stats.planned_steps > 0
    assert stats.evictions > 0
    assert "compiled region" in names


def failing_once(at: int) -> Any:
    """The call number ``at`` of any region runs out of memory half way: it has let go of its inputs."""
    call = CompiledFxGraph.__call__
    calls: list[int] = []

    def failing(region: CompiledFxGraph, inputs: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            call(region, inputs)
            raise RuntimeError(NO_MEMORY)
        return call(region, inputs)

    return mock.patch.object(CompiledFxGraph, "__call__", failing)


@pytest.mark.parametrize("at", [1, 2, 5, 6])
def test_a_forward_region_that_runs_out_of_memory_runs_again(at: int) -> None:
    run, _ = training(dropout=0.5)
    expected = run()
    with failing_once(at), torch_lms.session(limit="64kB", min_size=1024) as lms:
        assert same_bits(run(), expected)
        lms.validate()
        assert lms.stats().recoveries == 1
    assert same_bits(run(), expected)


def test_a_region_that_never_fits_says_so() -> None:
    model = Residual()
    model.compile(fullgraph=True)
    x = torch.randn(128, WIDTH)
    with torch.no_grad():
        model(x)

        def failing(region: CompiledFxGraph, inputs: Any) -> Any:
            raise RuntimeError(NO_MEMORY)

        with mock.patch.object(CompiledFxGraph, "__call__", failing), torch_lms.session(limit=0, min_size=1024) as lms:
            with pytest.raises(torch_lms.WorkingSetError, match="a compiled region"):
                model(x)
            lms.validate()


@pytest.mark.parametrize("at", [3, 8])
def test_a_backward_region_that_runs_out_of_memory_does_not(at: int) -> None:
    """It may have overwritten what was saved for it."""
    run, _ = training()
    expected = run()
    with failing_once(at), torch_lms.session(limit="64kB", min_size=1024) as lms:
        with pytest.raises(RuntimeError, match="not enough memory") as caught:
            run()
        assert any("cannot be run again" in note for note in caught.value.__notes__)
        lms.validate()
        assert same_bits(run(), expected)


def test_a_region_that_wrote_a_page_before_memory_ran_out_is_not_run_again() -> None:
    """Nobody knows how much it has written."""
    x = torch.ones(4096)
    double = torch.compile(lambda t: t.mul_(2), fullgraph=True)
    double(x.clone())
    with failing_once(1), torch_lms.session(limit=0, min_size=1024) as lms:
        with pytest.raises(RuntimeError, match="not enough memory"):
            double(x)
        lms.validate()
        assert lms.stats().recoveries == 0


def test_small_buffers_that_a_region_wrote_are_put_back() -> None:
    model = Normed()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    model.compile(fullgraph=True)
    x = torch.randn(128, WIDTH)

    def run() -> list[torch.Tensor]:
        model.load_state_dict(start)
        for _ in range(3):
            y = model(x)
        return [y.detach().clone(), *(value.clone() for value in model.state_dict().values())]

    expected = run()
    with failing_once(2), torch_lms.session(limit=0, min_size=1024) as lms:
        assert same_bits(run(), expected)
        assert lms.stats().recoveries == 1


def test_room_for_what_the_first_call_of_a_region_returns() -> None:
    """As much is expected as it is given."""
    compiled = torch.compile(lambda x: x.sin().cos())
    nbytes = 256 * 256 * 4
    with torch_lms.session(limit=3 * nbytes, min_size=1024) as lms:
        pages = [torch.randn(256, 256) for _ in range(3)]
        result = compiled(pages[0])
        assert lms.stats().peak_resident_bytes <= 3 * nbytes
        torch.testing.assert_close(result, pages[0].sin().cos())
        lms.validate()
