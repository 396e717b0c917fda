"""What trainers do beside training: they save, evaluate, transform, measure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_lms
from torch_lms.runtime import api

N = 4096


@pytest.fixture
def lms() -> Iterator[api.Lms]:
    with torch_lms.session(limit=0, min_size=512) as running:
        yield running
        running.validate()


def is_there(tensor: torch.Tensor) -> bool:
    return int(torch._C.StorageBase.nbytes(tensor.untyped_storage())) > 0


def leaves(tensor: torch.Tensor) -> bool:
    torch_lms.reclaim()
    return not is_there(tensor)


def test_an_array_holds_its_tensor_as_long_as_it_lives(lms: api.Lms) -> None:
    tensor = torch.arange(N, dtype=torch.float32) * 1
    array = tensor.numpy()
    part = memoryview(array)[10:20]
    again = np.asarray(tensor)
    del array
    assert not leaves(tensor)
    part[0] = 7.0
    del part
    assert not leaves(tensor)
    again[11] = 8.0
    del again
    assert leaves(tensor)
    assert lms.stats().unpaged_bytes == {}
    assert tensor[9:13].tolist() == [9.0, 7.0, 8.0, 12.0]


def test_a_tensor_may_die_before_its_array(lms: api.Lms) -> None:
    array = (torch.arange(N, dtype=torch.float32) * 1).numpy()
    torch_lms.reclaim()
    assert array.sum() == N * (N - 1) / 2
    del array
    torch_lms.reclaim()
    lms.validate()
    assert lms.stats().resident_bytes == 0


def test_arrays_of_parameters_of_a_training(lms: api.Lms) -> None:
    """As Keras and callbacks take them, before and after they are first used."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        saved = {name: value.detach().cpu().numpy() for name, value in model.named_parameters()}
        before = {name: value.copy() for name, value in saved.items()}
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        assert not np.array_equal(saved["0.weight"], before["0.weight"])  # it shows what the tensor became
        del saved
    assert leaves(model[0].weight)
    assert leaves(model[1].weight)


@pytest.mark.parametrize("take", [lambda p: p.data_ptr(), lambda p: p.detach().numpy()], ids=["data_ptr", "numpy"])
def test_a_loaded_parameter_whose_memory_is_shared_is_not_adopted(lms: api.Lms, take: Any, tmp_path: Path) -> None:
    torch.save(torch.ones(64, 64), tmp_path / "weight.pt")
    parameter = nn.Parameter(torch.load(tmp_path / "weight.pt", mmap=True))
    taken = take(parameter)
    parameter.grad = torch.ones(64, 64)
    torch.optim.SGD([parameter], lr=0.5).step()
    torch_lms.reclaim()
    assert is_there(parameter)
    assert parameter.detach().numpy().ctypes.data == (taken if isinstance(taken, int) else taken.ctypes.data)
    assert parameter.sum().item() == 0.5 * 64 * 64


def test_loaded_state_of_an_optimizer_leaves_before_its_next_step(lms: api.Lms, tmp_path: Path) -> None:
    """Its storages are those of a mapped file, as transformers loads them."""

    def trained(path: Path | None = None) -> torch.optim.Optimizer:
        parameter = nn.Parameter(torch.ones(64, 64))
        optimizer = torch.optim.Adam([parameter])
        for _ in range(2):
            if path is not None:
                optimizer.load_state_dict(torch.load(path, mmap=True))
            parameter.grad = torch.full((64, 64), 2.0)
            optimizer.step()
        return optimizer

    torch.save(trained().state_dict(), tmp_path / "optimizer.pt")
    optimizer = trained(tmp_path / "optimizer.pt")
    optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", mmap=True))
    (state,) = optimizer.state.values()
    assert leaves(state["exp_avg"])
    assert leaves(state["exp_avg_sq"])
    assert state["exp_avg"].mean().item() == pytest.approx(0.38)


def layers() -> dict[str, torch.Tensor]:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    return model.state_dict()


def test_safetensors_read(lms: api.Lms, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    weights = layers()
    expected = {name: value.tolist() for name, value in weights.items()}
    torch_lms.reclaim()
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    data = safetensors.save(weights)
    assert leaves(weights["0.weight"])
    assert lms.stats().unpaged_bytes == {}
    for loaded in (safetensors.load_file(tmp_path / "model.safetensors"), safetensors.load(data)):
        assert {name: value.tolist() for name, value in loaded.items()} == expected
    tied = {"one": weights["0.weight"], "two": weights["0.weight"][8:]}
    torch_lms.reclaim()
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file(tied, tmp_path / "tied.safetensors")


def test_hugging_face_hub_tells_tensors_apart_by_addresses(lms: api.Lms, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    weights = layers()
    weights["tied"] = weights["0.weight"]
    torch_lms.reclaim()
    hub.save_torch_state_dict(weights, tmp_path)
    assert leaves(weights["0.weight"])
    assert lms.stats().unpaged_bytes == {}
    loaded = pytest.importorskip("safetensors.torch").load_file(tmp_path / "model.safetensors")
    assert len(loaded) == 4


class Transform(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Metric(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(N))

    def forward(self, x: torch.Tensor) -> Any:
        self.total += x.flatten()[:N]
        return self.total.sum()


def test_modules_that_are_no_models_end_no_step(lms: api.Lms) -> None:
    transform, metric, tiny, model = Transform(), Metric(), nn.Linear(2, 2), nn.Linear(64, 64)
    with torch.no_grad():
        for _ in range(3):
            metric(model(transform(torch.ones(64, 64))))
            tiny(torch.ones(2, 2))
    assert lms.stats().steps == 3


def test_demand_is_that_of_the_largest_step() -> None:
    model = nn.Linear(64, 64)
    with torch_lms.session(limit="1GB", min_size=512) as lms:
        for rows in (64, 1024, 8, 8):
            with torch.no_grad():
                model(torch.ones(rows, 64))
        assert lms.stats().demand_bytes >= 2 * 1024 * 64 * 4
        lms.reset_stats()
        assert lms.stats().demand_bytes < 1024 * 64 * 4
