"""A model that is larger than the device is built on it, whoever builds it, with the numbers of stock PyTorch."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import torch_lms
from tests.bits import same_bits

SIDE, LAYERS = 128, 16
NBYTES = SIDE * SIDE * 4
LIMIT = 4 * NBYTES
MIN_SIZE = 1024


def new_model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(LAYERS)))


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return new_model()


def on_the_host(folder: Path, device: torch.device) -> nn.Module:
    return new_model().to(device)


def in_a_context(folder: Path, device: torch.device) -> nn.Module:
    with device:
        return new_model()


def from_meta(folder: Path, device: torch.device) -> nn.Module:
    model = on_meta().to_empty(device=device)
    for layer in model:
        layer.reset_parameters()
    return model


def without_initialization(folder: Path, device: torch.device) -> nn.Module:
    layers = [nn.utils.skip_init(nn.Linear, SIDE, SIDE, device=device) for _ in range(LAYERS)]
    for layer in layers:
        layer.reset_parameters()
    return nn.Sequential(*layers)


def from_a_checkpoint(folder: Path, device: torch.device) -> nn.Module:
    torch.save(new_model().state_dict(), folder / "model.pt")
    model = on_meta()
    model.load_state_dict(torch.load(folder / "model.pt", map_location=device), assign=True)
    return model


def from_safetensors(folder: Path, device: torch.device) -> nn.Module:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(new_model().state_dict(), folder / "model.safetensors")
    model = on_meta()
    weights = safetensors.load_file(folder / "model.safetensors")
    model.load_state_dict({name: weight.to(device) for name, weight in weights.items()}, assign=True)
    return model


def in_another_type(folder: Path, device: torch.device) -> nn.Module:
    return on_the_host(folder, device).double().to(torch.bfloat16)


BUILDERS = [
    *(on_the_host, in_a_context, from_meta, without_initialization, from_a_checkpoint, from_safetensors),
    in_another_type,
]


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_a_model_larger_than_the_device(
    build: Callable[[Path, torch.device], nn.Module], tmp_path: Path, device: torch.device, module: ModuleType
) -> None:
    torch.manual_seed(0)
    expected = [parameter.detach().cpu() for parameter in build(tmp_path, device).parameters()]
    module.schedule("lazy")
    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as running:
        torch.manual_seed(0)
        model = build(tmp_path, device)
        stats = running.stats()
        running.validate()
        found = [parameter.detach().cpu() for parameter in model.parameters()]
        assert same_bits(found, expected)
        model.cpu()
    assert stats.peak_resident_bytes <= LIMIT
    assert stats.unpaged_bytes == {}
    assert stats.evicted_bytes > 0
