"""On a real device: results with LMS on equal those without, to the bit, at every limit and in every tier."""

from collections.abc import Callable

import pytest
import torch
from bits import same_bits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from workloads import WORKLOADS, Workload

import torch_lms
from torch_lms.stores.base import Slot
from torch_lms.stores.disk import DiskStore

MIN_SIZE = 512
FEW = ["cnn", "unet", "encoder", "adamw-fused"]
"""Enough for the tiers behind the first."""

Reference = tuple[list[torch.Tensor], int]


@pytest.fixture(scope="module")
def reference_of(reference: Callable[[Workload, int], Reference]) -> Callable[[str], Reference]:
    """Results of a workload without LMS, and its demand."""
    known: dict[str, Reference] = {}

    def reference_of(name: str) -> Reference:
        if name not in known:
            known[name] = reference(WORKLOADS[name], MIN_SIZE)
        return known[name]

    return reference_of


@pytest.mark.parametrize("share", [2, 4, 0], ids=["half", "quarter", "zero"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_to_the_bit(
    name: str, share: int, device: torch.device, reference_of: Callable[[str], Reference]
) -> None:
    expected, demand = reference_of(name)
    with torch_lms.session(limit=demand // share if share else 0, min_size=MIN_SIZE) as lms:
        results = WORKLOADS[name](device)
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.evicted_bytes > 0
    assert stats.fetched_bytes > 0


@pytest.mark.parametrize("host_share", [8, 0], ids=["some host memory", "no host memory"])
@pytest.mark.parametrize("name", FEW)
def test_equal_to_the_bit_from_disk(
    name: str,
    host_share: int,
    device: torch.device,
    reference_of: Callable[[str], Reference],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, demand = reference_of(name)
    host_limit = demand // host_share if host_share else 0
    on_disk: list[Slot] = []
    reserve = DiskStore.reserve

    def noted(store: DiskStore, nbytes: int) -> Slot:
        on_disk.append(reserve(store, nbytes))
        return on_disk[-1]

    monkeypatch.setattr(DiskStore, "reserve", noted)
    with torch_lms.session(limit=0, min_size=MIN_SIZE, host_limit=host_limit) as lms:
        results = WORKLOADS[name](device)
        lms.reclaim()
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert on_disk
    assert stats.host_bytes <= host_limit


def test_a_loader_with_workers_and_pinned_batches(device: torch.device) -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(48, 256), torch.randn(48, 64))
        model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).to(device)
        updates = torch.optim.AdamW(model.parameters())
        losses = []
        for x, y in DataLoader(data, batch_size=16, num_workers=2, pin_memory=True):
            updates.zero_grad()
            batch, target = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = (model(batch) - target).square().mean()
            loss.backward()
            updates.step()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in model.parameters())]

    expected = train()
    with torch_lms.session(limit=0, min_size=MIN_SIZE) as lms:
        results = train()
        assert lms.stats().evictions > 0
    assert same_bits(results, expected)


def test_a_checkpoint_of_evicted_pages(device: torch.device, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).to(device)
    expected = [p.detach().clone() for p in model.parameters()]
    with torch_lms.session(limit=0, min_size=MIN_SIZE) as lms:
        model(torch.ones(1, 512, device=device))  # a tensor is known once an operation has used it
        lms.reclaim()
        assert lms.stats().host_bytes >= sum(p.nbytes for p in expected if p.nbytes >= MIN_SIZE)
        torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", map_location=device, weights_only=True)
    assert same_bits(list(loaded.values()), expected)
