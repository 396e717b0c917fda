"""What is written by functions that no operation shows: kernels of Triton, extensions in C++ (N11)."""

import ctypes
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import torch_lms
from torch_lms.errors import UsageError

_address = torch._C.TensorBase.data_ptr
"""As C++ asks for it: unseen."""


def extension_fill(tensor: torch.Tensor, byte: int) -> None:
    """As a function in C++ that is given a tensor."""
    assert tensor.untyped_storage().nbytes()
    ctypes.memset(_address(tensor), byte, tensor.nbytes)


class JITFunction:
    """As Triton's: its launcher asks its arguments for their addresses, and those of what descriptors describe."""

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        addresses = [getattr(arg, "base", arg).data_ptr() for arg in args]
        sizes = [getattr(arg, "base", arg).nbytes for arg in args]
        if kwargs.get("fails"):
            raise RuntimeError("no such kernel")
        ctypes.memmove(addresses[1], addresses[0], sizes[1])


class Descriptor:
    def __init__(self, base: torch.Tensor) -> None:
        self.base = base


@pytest.fixture
def lms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session in which everything leaves at once, and a Triton."""
    module = ModuleType("triton.runtime.jit")
    module.JITFunction = JITFunction  # type: ignore[attr-defined]
    run = JITFunction.run
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
    with torch_lms.session(limit=0, min_size=1024) as lms:
        yield lms
        lms.validate()
    assert JITFunction.run is run


@pytest.mark.parametrize("describes", [False, True])
def test_a_triton_kernel_finds_its_arguments_and_what_it_writes_counts(lms: Any, describes: bool) -> None:
    source = torch.full((4096,), 3.0)
    target = torch.zeros(4096)
    kernel = JITFunction()
    for value in (3.0, 5.0):
        source.fill_(value)
        target.sum()  # it comes, and leaves: there is a copy of what it was
        lms.reclaim()
        kernel.run(source, Descriptor(target) if describes else target, grid=(1,))
        lms.reclaim()
        assert target.unique().tolist() == [value]
    assert lms.stats().resident_bytes == 0
    assert lms.stats().unpaged_bytes == {}


def test_a_triton_kernel_that_fails_holds_nothing_any_more(lms: Any) -> None:
    source = torch.full((4096,), 3.0)
    with pytest.raises(RuntimeError, match="no such kernel"):
        JITFunction().run(source, source, grid=(1,), fails=True)
    lms.reclaim()
    assert lms.stats().resident_bytes == 0
    assert source.unique().tolist() == [3.0]


def test_what_is_written_inside_pinned_is_kept(lms: Any) -> None:
    x = torch.full((4096,), 3.0)
    lms.reclaim()
    x.sum()
    with torch_lms.pinned(x):
        extension_fill(x, 0)
    lms.reclaim()
    assert x.unique().tolist() == [0.0]


def test_touched_tells_of_what_was_written() -> None:
    with torch_lms.session(limit="1MB", min_size=1024) as lms:
        x = torch.full((4096,), 3.0)
        y = torch.full((4096,), 4.0)
        lms.reclaim()
        x.sum()
        y.sum()  # both are back, and what they were is still below
        extension_fill(x, 0)
        extension_fill(y, 0)
        torch_lms.touched(x, [y])
        lms.reclaim()
        assert x.unique().tolist() == y.unique().tolist() == [0.0]
        lms.validate()


def test_touched_refuses_what_cannot_have_been_written() -> None:
    with torch_lms.session(limit="1MB", min_size=1024) as lms:
        x = torch.full((4096,), 3.0)
        lms.reclaim()
        with pytest.raises(UsageError, match=r"(?s)not on the device.*torch_lms\.pinned"):
            torch_lms.touched(x)
        with pytest.raises(UsageError, match="takes tensors"):
            torch_lms.touched()
        assert x.unique().tolist() == [3.0]
