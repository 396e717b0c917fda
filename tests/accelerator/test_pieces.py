"""Operations larger than the device run on it in pieces (N27)."""

from types import ModuleType

import pytest
import torch
from torch import nn

import torch_lms
from tests.bits import same_bits
from tests.ways import IS_NATIVE
from torch_lms.capture.pieces import proof
from torch_lms.runtime import session

MIN_SIZE = 512
LIMIT = 96 << 10

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason="a tensor without memory is made by the native interposer")


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Proofs", lambda _path, exact: proof.Proofs(None, exact))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, stride=2)),
    )


def trained(model: nn.Module, x: torch.Tensor, steps: int) -> list[torch.Tensor]:
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.detach().cpu())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    return [*losses, *(parameter.detach().cpu() for parameter in model.parameters())]


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_a_training_with_operations_larger_than_the_limit(
    schedule: str, device: torch.device, module: ModuleType
) -> None:
    x = torch.randn(2, 3, 64, 64)
    expected = trained(net().to(device), x.to(device), 5)
    module.schedule(schedule)
    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as lms:
        found = trained(net().to(device), x.to(device), 5)
        stats = lms.stats()
        lms.validate()
    assert same_bits(found, expected)
    assert stats.in_pieces > 5


def test_a_result_larger_than_the_device(device: torch.device, module: ModuleType) -> None:
    """Nothing of that size is ever on it."""
    x = torch.randn(64, 2048)
    expected = [(x * 2).relu(), x[:, :5].double()]
    module.set_capacity(300 << 10, 0)
    with torch_lms.session(limit=200 << 10, min_size=MIN_SIZE) as lms:
        y = torch.cat([x[:32].to(device), x.to(device, non_blocking=True)[32:]])  # 512 KiB
        found = [(y * 2).relu().cpu(), y[:, :5].to("cpu", torch.float64, non_blocking=True)]
        assert lms.stats().in_pieces >= 5
        del y
    assert same_bits(found, expected)


@pytest.mark.parametrize("is_copied", [True, False])
def test_the_first_operation_makes_more_than_the_device_holds(
    is_copied: bool, device: torch.device, module: ModuleType
) -> None:
    x = torch.full((64, 2048), 0.5)  # 512 KiB
    module.set_capacity(300 << 10, 0)
    with torch_lms.session(limit=200 << 10, min_size=MIN_SIZE) as lms:
        y = x.to(device) if is_copied else torch.full((64, 2048), 0.5, device=device)
        found = [y.relu().cpu(), y[7, 5:2001].sum().cpu()]
        assert lms.stats().peak_resident_bytes <= 200 << 10
        del y
    assert same_bits(found, [x, torch.tensor(998.0)])
