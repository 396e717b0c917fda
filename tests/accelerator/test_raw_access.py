"""Every road to the bytes of a tensor on the device: open or closed, it is so with LMS as it is without (N11)."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torch_lms
from tests.bits import same_bits
from tests.cpu.test_raw_access import READS, VIEWS, WRITES, new_bitsandbytes

COUNT = 4096
MIN_SIZE = 512


def numbers(device: torch.device) -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.float32, device=device) * 0.5


def evicted(device: torch.device) -> torch.Tensor:
    tensor = numbers(device)
    torch_lms.reclaim()
    assert torch._C.StorageBase.nbytes(tensor.untyped_storage()) == 0
    return tensor


def outcome(road: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Any:
    """What the road gives, or the type of its error."""
    try:
        return road(tensor)
    except (TypeError, RuntimeError, ValueError, AttributeError, BufferError, NotImplementedError) as error:
        return type(error)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("road", READS)
def test_reading_an_evicted_page(road: str, device: torch.device, module: ModuleType) -> None:
    expected = outcome(READS[road], numbers(device))
    module.schedule("lazy")
    with torch_lms.session(limit=0, min_size=MIN_SIZE) as running:
        tensor = evicted(device)
        assert outcome(READS[road], tensor) == expected
        torch_lms.reclaim()
        running.validate()
        assert torch.equal(tensor, numbers(device))


def on_the_device(road: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Any:
    with tensor.device:  # where the roads make tensors of their own
        return outcome(road, tensor)


@pytest.mark.parametrize("road", WRITES)
def test_writing_to_an_evicted_page(road: str, device: torch.device, module: ModuleType) -> None:
    plain = numbers(device)
    expected = on_the_device(WRITES[road], plain)
    module.schedule("lazy")
    with torch_lms.session(limit=0, min_size=MIN_SIZE) as running:
        tensor = evicted(device)
        found = on_the_device(WRITES[road], tensor)
        assert isinstance(expected, type) == isinstance(found, type)
        torch_lms.reclaim()
        running.validate()
        assert torch.equal(tensor, plain)
        torch_lms.reclaim()
    assert torch.equal(tensor, plain)


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_of_an_evicted_page_does_not_bring_it(kind: str, device: torch.device, module: ModuleType) -> None:
    module.schedule("lazy")
    with torch_lms.session(limit=0, min_size=MIN_SIZE) as running:
        expected, tensor = numbers(device), evicted(device)
        fetches = running.stats().fetches
        views = outcome(VIEWS[kind], tensor)
        is_native = running.stats().interposer == "native"
        assert running.stats().fetches == fetches or not is_native or kind == "real and imaginary"
        if not isinstance(views, type):
            assert same_bits(pytree.tree_leaves(views), pytree.tree_leaves(VIEWS[kind](expected)))
        running.validate()


@pytest.mark.parametrize(
    "export", [lambda t: t.data_ptr(), lambda t: t.untyped_storage().data_ptr(), lambda t: t.view(2, -1)[1].data_ptr()]
)
def test_an_escaped_address_stays(export: Callable[[torch.Tensor], int], device: torch.device) -> None:
    with torch_lms.session(limit=0, min_size=MIN_SIZE) as running:
        tensor = evicted(device)
        address = export(tensor)
        torch_lms.reclaim()
        tensor.add_(1)
        torch_lms.reclaim()
        assert export(tensor) == address
        assert running.stats().unpaged_bytes == {"address escaped": 4 * COUNT}
        running.validate()
    assert torch.equal(tensor, numbers(device) + 1)


@pytest.mark.parametrize("pace", ["lazy", "mixed", "eager"])
def test_what_a_kernel_does_by_a_pointer_that_has_died(
    pace: str, device: torch.device, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream may be at it still when the page leaves."""
    bitsandbytes = new_bitsandbytes(monkeypatch)
    with torch_lms.session(limit=0, min_size=MIN_SIZE) as running:
        tensor = evicted(device)
        module.schedule(pace)
        for _ in range(3):
            pointer = bitsandbytes.get_ptr(tensor)
            with running._session.unseen():  # as what a function in C launches
                tensor.add_(1)
            del pointer
            torch_lms.reclaim()
            assert torch._C.StorageBase.nbytes(tensor.untyped_storage()) == 0
        assert torch.equal(tensor, numbers(device) + 3)
        assert running.stats().unpaged_bytes == {}
        running.validate()


def test_a_file_of_safetensors(device: torch.device, module: ModuleType, tmp_path: Path) -> None:
    """Its tensors come one by one."""
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({str(number): numbers(device) + number for number in range(8)}, tmp_path / "stock")
    module.schedule("lazy")
    nbytes = COUNT * 4
    with torch_lms.session(limit=2 * nbytes, min_size=MIN_SIZE) as running:
        tensors = {str(number): numbers(device) + number for number in range(8)}
        safetensors.save_file(tensors, tmp_path / "ours")
        running.validate()
        assert running.stats().peak_resident_bytes <= 2 * nbytes
        assert running.stats().unpaged_bytes == {}
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "stock").read_bytes()
