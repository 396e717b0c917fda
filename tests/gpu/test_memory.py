"""Memory of a real device and page-locked memory: running out, escaping addresses, the driver's own account."""

import gc
import statistics
from collections.abc import Callable

import pytest
import torch

import torch_lms
from torch_lms.errors import WorkingSetError
from torch_lms.runtime.accelerator import AcceleratorDevice
from torch_lms.runtime.executor import Executor

MIB = 1 << 20


@pytest.fixture
def one_gib(cuda: torch.device, allow: Callable[[int], None]) -> None:
    """A process that may take one GiB more of the device."""
    allow(1024 * MIB)


def sums(device: torch.device) -> list[float]:
    """Holds 1.6 GB, uses 0.4 GB at a time."""
    tensors = [torch.full((100 * MIB,), float(n + 1), device=device) for n in range(4)]
    for tensor in tensors:
        tensor.mul_(0.5)
    return [float(tensor[-1]) for tensor in tensors]


@pytest.mark.usefixtures("one_gib")
def test_what_stock_pytorch_cannot_hold(cuda: torch.device) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        sums(cuda)
    gc.collect()
    torch.cuda.empty_cache()
    with torch_lms.session() as lms:
        assert sums(cuda) == [0.5, 1.0, 1.5, 2.0]
        assert lms.stats().evictions > 0


@pytest.mark.usefixtures("one_gib")
def test_recovery_from_a_limit_that_promises_too_much(cuda: torch.device) -> None:
    with torch_lms.session(limit="64GiB") as lms:
        assert sums(cuda) == [0.5, 1.0, 1.5, 2.0]
        stats = lms.stats()
        assert stats.recoveries > 0
        assert stats.evictions > 0


@pytest.mark.usefixtures("one_gib")
def test_an_operation_too_large_for_the_device(cuda: torch.device) -> None:
    with torch_lms.session():
        a, b = (torch.ones(200 * MIB, device=cuda) for _ in range(2))
        with pytest.raises(WorkingSetError, match=r"aten::add"):
            torch.add(a, b)
        del a, b
        gc.collect()  # else both would have to come back at once


def test_an_address_that_escaped_stays(device: torch.device) -> None:
    with torch_lms.session(limit=0) as lms:
        x = torch.arange(MIB, device=device, dtype=torch.float32)
        address = x.data_ptr()
        lms.reclaim()
        x.add_(1)
        lms.reclaim()
        assert x.data_ptr() == address
        assert lms.stats().unpaged_bytes == {"address escaped": 4 * MIB}
        assert x[-1] == MIB


def test_another_owner_through_dlpack_sees_what_is_written(device: torch.device) -> None:
    with torch_lms.session(limit=0) as lms:
        x = torch.zeros(MIB, device=device)
        try:
            y = torch.from_dlpack(x)
        except ValueError as error:
            pytest.skip(f"DLPack does not know the device: {error}")
        lms.reclaim()
        x.add_(1)
        assert y.sum() == MIB


def test_page_locked_memory_is_page_locked(cuda: torch.device) -> None:
    device = AcceleratorDevice(cuda)
    memory = device.page_lock(3 * MIB + 5)
    assert memory.is_pinned()
    address = memory.data_ptr()
    del memory
    gc.collect()
    again = device.page_lock(3 * MIB + 5)  # the same pages may be locked again: they were let go
    assert again.is_pinned()
    assert address


def test_evicted_pages_leave_the_device(device: torch.device) -> None:
    module = torch.get_device_module(device)
    x = torch.ones(64 * MIB, device=device)
    before = module.memory_allocated(device)
    with torch_lms.session(limit="64GiB") as lms:
        x.add_(1)
        lms.reclaim()
        assert module.memory_allocated(device) <= before - 256 * MIB
        assert lms.stats().host_bytes == 256 * MIB
    assert x.sum() == 2 * 64 * MIB


def test_copies_run_beside_each_other(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits for nothing while pages move to page-locked memory and back; the program's stream does."""
    waits: list[Callable[[], None]] = []
    monkeypatch.setattr(Executor, "_wait", lambda _, wait: waits.append(wait) or wait())
    tensors = [torch.full((16 * MIB,), float(n), device=device) for n in range(8)]
    with torch_lms.session(limit=0) as lms:
        for _ in range(3):
            lms.reclaim()
            for tensor in tensors:
                tensor.add_(1)
        torch.accelerator.synchronize()
        stall_s = lms.stats().stall_s
    assert [float(tensor[-1]) for tensor in tensors] == [n + 3.0 for n in range(8)]
    assert waits == []
    assert stall_s > 0


@pytest.mark.usefixtures("_times_count")
def test_operations_take_what_the_device_takes(device: torch.device) -> None:
    """The host asks for a large product in microseconds."""
    module = torch.get_device_module(device)
    x = torch.randn(4096, 4096, device=device)
    events = [module.Event(enable_timing=True) for _ in range(2)]
    for event in events:  # the first product finds nothing warm
        y = x
        for _ in range(10):
            y = y @ x
        event.record()
    events[1].synchronize()
    product_s = events[0].elapsed_time(events[1]) / 1e3 / 10
    with torch_lms.session(limit=3 * x.nbytes) as lms:
        for _ in range(3):
            kept = [x @ x for _ in range(5)]
            del kept
            lms.step()
        trace = lms.trace()
    products = [op.seconds for op in trace.ops if op.name == "aten::mm"]
    assert len(products) == 5
    assert 0.5 < statistics.median(products) / product_s < 2
