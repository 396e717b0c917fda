"""Threads that train beside each other in one session."""

import queue
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from shares import trained
from torch import nn

import torch_lms
from tests.injection import NthCall, in_place_of
from torch_lms.capture.pieces import table, tiles

THREADS, STEPS = 4, 15


def train(seed: int) -> list[torch.Tensor]:
    """The results of small layers on batches of other sizes each time."""
    generator, sizes = torch.Generator().manual_seed(seed), random.Random(seed)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss() -> torch.Tensor:
        return model(torch.randn(sizes.choice([16, 32, 64]), 64, generator=generator)).square().mean()

    return trained(model, optimizer, loss, STEPS)


def train_all() -> list[list[torch.Tensor]]:
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(train, range(THREADS)))


@pytest.mark.parametrize("limit", [300_000, 1_200_000])
@pytest.mark.parametrize("policy", ["reactive", "planned"])
def test_equal_to_the_bit(policy: str, limit: int) -> None:
    expected = train_all()
    with torch_lms.session(limit=limit, min_size=1024, device="cpu", policy=policy) as lms:
        found = train_all()
        lms.validate()
        assert lms.stats().evictions > 100
    for ours, theirs in zip(found, expected, strict=True):
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("limit", [400_000, 1_000_000])
def test_one_model_serves_many_at_once(limit: int) -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128), nn.LayerNorm(128)) for _ in range(6)]
    model = nn.Sequential(*blocks).eval()
    requests = [torch.randn(size, 128) for size in (1, 7, 16, 33, 5, 64, 2, 128) * 3]

    @torch.inference_mode()
    def serve(request: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = model(request)
        return answer

    with ThreadPoolExecutor(THREADS) as threads:
        expected = list(threads.map(serve, requests))
    with torch_lms.session(limit=limit, min_size=1024, device="cpu") as lms, ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(serve, requests))
        lms.validate()
        assert lms.stats().fetches > 20
    assert all(map(torch.equal, found, expected))


def test_a_view_leaves_in_place_what_another_thread_has_brought_back() -> None:
    """As the view was refused it was away; now it may be in use."""
    tensor = torch.arange(4096.0)
    address = tensor.data_ptr()
    held = torch.empty(4096)  # whoever gave the memory back here would be given other
    view = table.alias_by_memory(tensor, (64,), (2,), 100)
    assert tensor.data_ptr() == view.untyped_storage().data_ptr() == address
    assert torch.equal(view, torch.arange(100.0, 228.0, 2))
    del held


def train_on_batches_made_beside(steps: int) -> list[torch.Tensor]:
    """Another thread makes and augments them."""
    torch.manual_seed(0)
    convolutions = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU())]
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *convolutions, nn.Flatten(), nn.Linear(8 * 32 * 32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    ready: queue.Queue[torch.Tensor] = queue.Queue(2)

    def make() -> None:
        generator = torch.Generator().manual_seed(3)
        for _ in range(steps):
            batch = torch.rand(4, 3, 40, 40, generator=generator)
            batch = (batch - batch.mean((2, 3), keepdim=True)) / batch.std((2, 3), keepdim=True)
            ready.put(batch.flip(3)[:, :, 4:36, 4:36].contiguous())

    thread = threading.Thread(target=make)
    thread.start()
    results = trained(model, optimizer, lambda: model(ready.get()).square().mean(), steps)
    thread.join()
    return results


@pytest.mark.parametrize("recompute", [True, False])
def test_a_thread_that_makes_batches_leaves_the_steps_their_plans(recompute: bool) -> None:
    expected = train_on_batches_made_beside(12)
    with torch_lms.session(limit="1GB", min_size=1024, device="cpu"):
        train_on_batches_made_beside(3)
        demand = torch_lms.stats().demand_bytes
    with torch_lms.session(limit=demand // 2, min_size=1024, device="cpu", recompute=recompute) as lms:
        found = train_on_batches_made_beside(12)
        lms.validate()
        assert lms.stats().planned_steps >= 8
    assert all(map(torch.equal, found, expected))


_events: list[threading.Event] = []


@torch.library.custom_op("lms_threads::twice_when_told", mutates_args=())
def _twice_when_told(x: torch.Tensor) -> torch.Tensor:
    if _events:
        began, go = _events
        began.set()
        assert go.wait(60)
    return x * 2


@_twice_when_told.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_what_runs_elsewhere_keeps_room_for_its_result() -> None:
    with torch_lms.session(limit=400_000, min_size=1024, device="cpu", policy="reactive") as lms:
        given = torch.ones(10_000)
        _twice_when_told(given)
        _events.extend([threading.Event(), threading.Event()])
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(_twice_when_told, given)
            assert _events[0].wait(60)
            kept = [torch.ones(10_000) * number for number in range(20)]
            _events[1].set()
            result = running.result()
        _events.clear()
        assert lms.stats().peak_resident_bytes <= 400_000
        assert sum(map(torch.sum, kept)) == 10_000 * 190
        assert result.sum() == 20_000
        lms.validate()


@pytest.mark.parametrize("name", ["then", "add_done_callback"])
def test_what_waits_for_a_future_is_called_on_a_thread_that_takes_part(name: str) -> None:
    """Whoever sets the result calls it, as threads of process groups do, which are PyTorch's own."""
    future: torch.futures.Future[float] = torch.futures.Future()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(int).result()  # the thread is there before the session
        with torch_lms.session(limit=0, min_size=1024, device="cpu") as lms:
            weight = torch.ones(4096)
            waiting = getattr(future, name)(lambda done: weight.add_(done.value()))
            lms.reclaim()
            threads.submit(future.set_result, 2.0).result()
            assert waiting is None or waiting.wait() is weight
            lms.reclaim()
            assert torch.equal(weight, torch.full((4096,), 3.0))
            lms.validate()


def between(
    module: ModuleType, name: str, do: Callable[[], torch.Tensor], other: Callable[[], torch.Tensor]
) -> list[torch.Tensor]:
    """The results of ``do``, which is held in its second call of a function, and of ``other``, which another thread
    begins meanwhile.
    """
    began, go = threading.Event(), threading.Event()

    def held(call: Callable[..., Any], *args: Any) -> Any:
        began.set()
        assert go.wait(60)
        return call(*args)

    with in_place_of(module, name, partial(NthCall, number=2, instead=held)), ThreadPoolExecutor(2) as threads:
        first = threads.submit(do)
        assert began.wait(60)
        second = threads.submit(other)
        wait([second], timeout=0.5)  # it waits for the first, or is done by then
        go.set()
        return [first.result(), second.result()]


def test_what_is_cut_into_tiles_is_not_written_meanwhile() -> None:
    kept, other, factor = (torch.randn(40 << 10) for _ in range(3))
    before, after = torch.addcmul(kept, other, factor), kept + 1
    with torch_lms.session(limit=300_000, min_size=1024, device="cpu") as lms:
        product, _ = between(table, "copied", lambda: torch.addcmul(kept, other, factor), lambda: kept.add_(1))
        assert torch.equal(kept, after)
        assert torch.equal(product, before)
        lms.validate()


def test_what_was_in_tiles_is_read_once_it_is_whole() -> None:
    kept, other, factor = (torch.randn(40 << 10) for _ in range(3))
    expected = kept.sum()
    with torch_lms.session(limit=300_000, min_size=1024, device="cpu") as lms:
        torch.addcmul(kept, other, factor)
        assert between(tiles, "part", lambda: kept.sum(), lambda: kept.sum()) == [expected, expected]
        lms.validate()
