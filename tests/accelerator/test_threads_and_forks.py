"""Threads, forks, checkpoints and two devices, on streams that are late: equal to the bit with and without LMS."""

import os
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from bits import same_bits
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import torch_lms
from tests import accelerator
from torch_lms.engine import engine
from torch_lms.errors import ForkedPageError
from torch_lms.planner import Speeds

MIN_SIZE = 1024

Program = Callable[[torch.device], list[torch.Tensor]]


def network(device: torch.device, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32)).to(device)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    state = [value for slots in optimizer.state.values() for value in slots.values()]
    return [tensor.detach() for tensor in (*model.parameters(), *state) if isinstance(tensor, torch.Tensor)]


def two_threads(device: torch.device) -> list[torch.Tensor]:
    """Each trains a network of its own, on a stream of its own. No dropout: there is one generator for both."""
    module = torch.get_device_module(device)
    results: list[list[torch.Tensor]] = [[], []]
    torch.manual_seed(0)
    batches = [[torch.randn(16, 64).to(device) for _ in range(5)] for _ in results]
    models = [network(device, seed).eval() for seed in range(2)]
    module.synchronize()

    def work(number: int) -> None:
        side = module.Stream(device)
        with module.stream(side):
            optimizer = torch.optim.AdamW(models[number].parameters())
            losses = [step(models[number], optimizer, batch) for batch in batches[number]]
            results[number] = [tensor.cpu() for tensor in (*losses, *held(models[number], optimizer))]
        side.synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [tensor for found in results for tensor in found]


def batches_made_beside(device: torch.device) -> list[torch.Tensor]:
    """Another thread makes them on the device."""
    torch.manual_seed(0)
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ready: queue.Queue[torch.Tensor] = queue.Queue(2)

    def make() -> None:
        generator = torch.Generator().manual_seed(1)
        for _ in range(10):
            batch = torch.rand(16, 64, generator=generator).to(device)
            ready.put(((batch - batch.mean()) / batch.std()).flip(1))

    thread = threading.Thread(target=make)
    thread.start()
    losses = [step(model, optimizer, ready.get()) for _ in range(10)]
    thread.join()
    return [*losses, *held(model, optimizer)]


def hooks_on_the_devices_thread(device: torch.device) -> list[torch.Tensor]:
    """Gradients come on a thread of the device, whose hooks make tensors and use pages of the main thread's."""
    torch.manual_seed(0)
    kept, scale = [], torch.rand(128, 64, device=device)
    model = network(device)
    model[0].weight.register_hook(lambda gradient: gradient * scale)
    model[3].weight.register_post_accumulate_grad_hook(lambda p: kept.append(p.grad.clone() + p))
    for _ in range(4):
        model(torch.randn(16, 64, device=device)).square().mean().backward()
    return [*kept, *(p.grad for p in model.parameters())]


def loader(device: torch.device, workers: int) -> list[torch.Tensor]:
    """Batches by way of the thread that page-locks them, and of forked workers."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 64))
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(2):
        for (batch,) in DataLoader(data, batch_size=16, shuffle=True, num_workers=workers, pin_memory=True):
            losses.append(step(model, optimizer, batch.to(device, non_blocking=True)))
    return [*losses, *held(model, optimizer)]


def checkpointed(device: torch.device) -> list[torch.Tensor]:
    """Blocks run again in backward, and draw the same numbers again."""
    blocks = nn.ModuleList([nn.Sequential(network(device, n), nn.Linear(32, 64).to(device)) for n in range(3)])
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(blocks.parameters())
    for n in range(4):
        optimizer.zero_grad()
        x = torch.randn(8, 64, device=device, requires_grad=True)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=n % 2 == 0)
        x.square().mean().backward()
        optimizer.step()
    return held(blocks, optimizer)


def two_devices(device: torch.device) -> list[torch.Tensor]:
    """A model whose halves are on two devices; activations go over, and gradients back."""
    other = torch.device(device.type, 1)
    first, second = network(device), network(other, 1)
    between = nn.Linear(32, 64).to(other)
    parameters = [*first.parameters(), *between.parameters(), *second.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(4):
        optimizer.zero_grad()
        second(between(first(torch.randn(16, 64, device=device)).to(other))).square().mean().backward()
        optimizer.step()
    return [tensor.cpu() for tensor in held(nn.ModuleList([first, between, second]), optimizer)]


PROGRAMS: dict[str, Program] = {
    "two threads": two_threads,
    "a thread that makes batches": batches_made_beside,
    "the device's thread": hooks_on_the_devices_thread,
    "a thread that page-locks": lambda device: loader(device, 0),
    "forked workers": lambda device: loader(device, 2),
    "checkpointed blocks": checkpointed,
    "two devices": two_devices,
}


@pytest.mark.parametrize("policy", ["planned", "reactive"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_to_the_bit(name: str, policy: str, device: torch.device, module: ModuleType) -> None:
    expected = PROGRAMS[name](device)
    module.schedule("mixed", seed=len(name))
    with torch_lms.session(limit="24KiB", min_size=MIN_SIZE, policy=policy) as lms:
        results = PROGRAMS[name](device)
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.evictions > 0
    assert stats.fetches > 0


def test_batches_that_are_made_beside_leave_the_steps_their_plans(device: torch.device) -> None:
    with torch_lms.session(limit="96KiB", min_size=MIN_SIZE) as lms:
        batches_made_beside(device)
        assert lms.stats().evictions > 0
        assert lms.stats().planned_steps >= 6


def test_a_checkpoint_of_a_paged_training_goes_on(device: torch.device, tmp_path: Path, module: ModuleType) -> None:
    """Saved, loaded and trained on; saved under LMS and loaded without, and the other way round."""

    def whole(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[torch.Tensor]:
        file = tmp_path / "state.pt"
        with _session(before):
            model = network(device)
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(3):
                step(model, optimizer, torch.randn(16, 64, device=device))
            random = torch.get_rng_state(), module.get_rng_state()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        with _session(after):
            model = network(device, seed=5)
            optimizer = torch.optim.AdamW(model.parameters())
            loaded = torch.load(file, map_location=device, weights_only=True)
            model.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optimizer"])
            torch.set_rng_state(random[0])
            module.set_rng_state(random[1])
            for _ in range(3):
                step(model, optimizer, torch.randn(16, 64, device=device))
            return [tensor.cpu() for tensor in held(model, optimizer)]

    expected = whole(None, None)
    module.schedule("lazy")
    paged: dict[str, Any] = {"limit": 0, "min_size": MIN_SIZE}
    for before, after in ((paged, paged), (paged, None), (None, paged)):
        assert same_bits(whole(before, after), expected)


def _session(settings: dict[str, Any] | None) -> AbstractContextManager[Any]:
    return nullcontext() if settings is None else torch_lms.session(**settings)


def test_a_forked_child_lets_go_of_the_devices_pages(device: torch.device) -> None:
    """What is away stays with the parent: the child is told so, and the parent works on."""
    with torch_lms.session(limit=0, min_size=MIN_SIZE) as lms:
        x = torch.full((4096,), 3.0, device=device)
        lms.reclaim()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                x + 1
                code = 2
            except ForkedPageError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        x.add_(1)
        lms.reclaim()
        lms.validate()
        assert x.sum() == 4 * 4096


def test_every_device_has_a_limit_of_its_own(device: torch.device, module: ModuleType) -> None:
    other = torch.device(accelerator.NAME, 1)
    with torch_lms.session(limit="1MiB", min_size=MIN_SIZE) as lms:
        here, there = ([torch.full((1 << 17,), float(n), device=d) for n in range(4)] for d in (device, other))
        for tensor in (*here, *there):
            tensor.add_(1)
        module.synchronize(0)
        module.synchronize(1)
        lms.validate()
        assert lms.stats().evictions >= 4
    assert [float(t[-1]) for t in (*here, *there)] == [1.0, 2.0, 3.0, 4.0] * 2


def test_a_copy_from_another_device_is_moved_and_not_recomputed(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source is a page of another engine, which knows nothing of what depends on it."""
    other = torch.device(accelerator.NAME, 1)
    count = 1 << 16
    monkeypatch.setattr(engine, "Speeds", lambda *_: Speeds(1e5, 1e5))  # whatever can be recomputed is
    with torch_lms.session(limit=5 * count, min_size=MIN_SIZE) as lms:
        for step in range(6):
            torch.ones(4 * count, device=other).add_(1)  # room is short there, too
            source = torch.full((count,), float(step), device=other)
            page = source.to(device)
            used = page.sum()
            torch.zeros(4 * count, device=device).add_(1)  # there is no room for both
            assert float((page * 2)[7]) == 2.0 * step
            assert float(used) == step * count
            del page, used, source
            lms.step()
        assert lms.stats().planned_steps > 0
        lms.validate()
