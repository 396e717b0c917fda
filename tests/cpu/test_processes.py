"""Other processes beside a session: loader workers by fork and spawn, queues, a session in each process (N13)."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torch_lms
from tests.bits import same_bits

LIMIT, MIN_SIZE = "100KiB", 1024


class Rows(Dataset[torch.Tensor]):
    """Made in the parent, some of it on disk by the time that a worker wants it."""

    def __init__(self) -> None:
        self.rows = [torch.full((1000,), float(n)) for n in range(12)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index] * 2


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_workers(method: str) -> None:
    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as lms:
        rows = Rows()
        torch.zeros(100_000).add_(1)
        torch_lms.reclaim()
        loader = DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context=method, persistent_workers=True)
        for _ in range(2):
            batches = [batch.clone() for batch in loader]
            torch_lms.reclaim()
            assert [batch[:, 0].tolist() for batch in batches] == [[2.0 * (n + k) for k in range(4)] for n in (0, 4, 8)]
        del loader
        lms.validate()


def _doubled(given: Any, taken: Any) -> None:
    taken.put(given.get() * 2)
    given.get()  # the parent has it: until then its memory is ours


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_queues_carry_evicted_tensors(method: str) -> None:
    context = mp.get_context(method)
    given, taken = context.SimpleQueue(), context.SimpleQueue()
    with torch_lms.session(limit=0, min_size=MIN_SIZE) as lms:
        tensor = torch.arange(4096.0)
        torch_lms.reclaim()
        process = context.Process(target=_doubled, args=(given, taken))
        process.start()
        given.put(tensor)
        result = taken.get()
        given.put(None)
        torch_lms.reclaim()
        assert torch.equal(result, torch.arange(4096.0) * 2)
        assert torch.equal(tensor, torch.arange(4096.0))
        assert lms.stats().unpaged_bytes["shared memory"] >= 4096 * 4
        lms.validate()
        process.join(60)
    assert process.exitcode == 0


def trained(limit: int | None) -> list[torch.Tensor]:
    """A training of three steps, with a session or without."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters())
    if limit is not None:
        torch_lms.enable(limit=limit, min_size=MIN_SIZE)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
    if limit is not None:
        assert torch_lms.stats().evictions
        torch_lms.disable()
    return [parameter.detach() for parameter in model.parameters()]


def _train_and_save(rank: int, directory: Path) -> None:
    torch.set_num_threads(1)
    torch.save(trained(limit=rank * 100_000), directory / f"{rank}.pt")


def test_a_session_in_each_process(tmp_path: Path) -> None:
    expected = trained(None)
    with torch_lms.session(limit=0, min_size=MIN_SIZE):
        mp.spawn(_train_and_save, args=(tmp_path,), nprocs=2)
    for rank in range(2):
        assert same_bits(torch.load(tmp_path / f"{rank}.pt"), expected)
