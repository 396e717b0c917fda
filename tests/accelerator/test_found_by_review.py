"""What a review of the GPU path found, and what the test accelerator showed."""

import time
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.distributed

import torch_lms
from tests import accelerator
from tests.ways import IS_NATIVE
from torch_lms.runtime import api, calibrate
from torch_lms.runtime.accelerator import AcceleratorDevice
from torch_lms.runtime.limits import auto_limit
from torch_lms.runtime.streams import StreamExecutor

MIB = 1 << 20


def full(count: int, value: float, device: torch.device) -> torch.Tensor:
    return torch.full((count,), float(value), device=device)


def leave(nbytes: int, module: ModuleType) -> None:
    """The device has ``nbytes`` beside what is allocated now."""
    module.empty_cache()
    module.set_capacity(module.memory_allocated() + nbytes)


def test_an_operator_that_ran_out_of_memory_draws_the_same_again(module: ModuleType, device: torch.device) -> None:
    """It has drawn before memory ran out, and is run again with other pages gone."""
    x = full(4 * MIB, 1, device)
    torch.manual_seed(1)
    expected = torch.dropout(x, 0.5, train=True).cpu(), torch.rand(3, device=device).cpu()
    with torch_lms.session(limit=150 * MIB, policy="reactive") as lms:
        others = [full(4 * MIB, n, device) for n in range(4)]
        x.add_(0)
        leave(16 * MIB, module)  # for the mask, and not for the product
        torch.manual_seed(1)
        found = torch.dropout(x, 0.5, train=True).cpu(), torch.rand(3, device=device).cpu()
        assert lms.stats().recoveries > 0
        assert [float(other[0]) for other in others] == [0, 1, 2, 3]
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_a_fetch_that_failed_teaches(module: ModuleType, device: torch.device) -> None:
    """The books said that it fits. Each step would find out anew, by giving up all that is cached, and all pages."""
    tensors = [full(4 * MIB, n, device) for n in range(6)]
    limit = 6 * 16 * MIB
    with torch_lms.session(limit=limit, policy="reactive") as lms:
        for tensor in tensors:
            tensor.add_(1)
        lms.reclaim()
        leave(4 * 16 * MIB, module)
        for _ in range(2):
            for tensor in tensors:
                tensor.add_(1)
        assert lms.stats().limit_bytes < limit
        module.set_capacity(accelerator.CAPACITY)
    assert [float(tensor[-1]) for tensor in tensors] == [n + 3.0 for n in range(6)]


def test_the_end_of_a_collective_is_waited_for_before_memory_is_given_up_for_lost(
    module: ModuleType, device: torch.device
) -> None:
    """It pins its tensors until the device is done with it. The host runs ahead, and there waiting helps."""
    held = full(8 * MIB, 3, device)
    x = full(MIB, 1, device)
    module.synchronize()
    module.schedule("lazy")
    with torch_lms.session(limit="1GB", policy="reactive") as lms:
        held.add_(1)
        x.add_(0)
        done = module.Event()
        done.record()
        running = torch_lms.runtime.api._running
        assert running is not None
        entry = running._session.find(torch._C.TensorBase.untyped_storage(held))
        assert entry is not None
        running._session.hold([entry], done.query)
        leave(24 * MIB, module)
        y = full(8 * MIB, 5, device)  # 32 MiB
        assert float(y[-1]) == 5
        assert lms.stats().recoveries > 0
        module.set_capacity(accelerator.CAPACITY)
    assert float(held[-1]) == 4


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError("anything"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (
            torch.distributed.DistBackendError(
                "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error\nLast error:\n"
                "Cuda failure 2 'out of memory'"
            ),
            True,
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("NCCL error: unhandled system error\nCuda failure 700 'an illegal memory access'"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_what_says_that_memory_ran_out(error: Exception, is_it: bool, device: torch.device) -> None:
    assert AcceleratorDevice(device).is_out_of_memory(error) is is_it


def test_auto_leaves_a_share_of_the_whole(module: ModuleType, device: torch.device) -> None:
    """Workspaces do not become smaller where little remains."""
    module.set_capacity(40 << 30)
    margins = []
    for taken in (0, 1 << 30):
        held = torch.empty(taken, dtype=torch.uint8, device=device)
        free, _ = module.mem_get_info(device)
        margins.append(free + module.memory_reserved() - module.memory_allocated() - auto_limit(device).nbytes)
        del held
    assert margins[0] == margins[1] == 2 << 30


def test_calibration_asks_the_device_itself(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(calibrate, "_product_flop_per_s", lambda *_: 1e12)
    monkeypatch.setattr(calibrate, "_rate", lambda *_: 1e9)
    monkeypatch.setattr(calibrate, "_launch_s", lambda *_: 1e-5)
    assert calibrate._accelerator(device, "", 0, 1e9).name == "test accelerator 0"


@pytest.mark.parametrize("pace", ["delayed", "lazy"])
def test_memory_of_a_stream_that_lms_never_saw_is_not_handed_out_before_it_was_read(
    pace: str, module: ModuleType, device: torch.device
) -> None:
    """It was allocated before LMS was on, for a stream that has nothing to do with it any more."""
    third = module.Stream(device)
    with module.stream(third):
        x = full(MIB, 7, device)
    module.synchronize()
    module.schedule(pace, 1)
    with torch_lms.session(limit="1GB", policy="reactive") as lms:
        y = x * 2
        lms.reclaim()
        with module.stream(third):
            z = full(MIB, 1, device)
            assert float(z[-1]) == 1
        assert float(x.sum().cpu()) == 7 * MIB
        assert float(y.sum().cpu()) == 14 * MIB


def test_a_copy_down_waits_for_the_last_use_of_its_page_alone(module: ModuleType, device: torch.device) -> None:
    """Reactively, too, it runs beside what the device was asked for since."""
    module.schedule("lazy")
    with torch_lms.session(limit=9 * MIB, policy="reactive") as lms:
        idle, busy = full(MIB, 1, device), full(MIB, 2, device)
        late = full(MIB, 3, device)  # the two others cannot both stay
        lms.step()  # room is short: what follows is recorded
        idle.add_(1)
        for _ in range(8):
            busy.mul_(1)
        since = module.Event()
        since.record()
        session = api.current_session()
        assert session is not None
        last = full(MIB, 5, device)  # now idle leaves
        with session.standing_still() as (backend,):
            executor = backend.executor
            assert isinstance(executor, StreamExecutor)
            executor._device.synchronize(executor._device.record(executor._out))
        assert not since.query()
        module.schedule("eager")
    assert [float(tensor[-1]) for tensor in (idle, busy, late, last)] == [2, 2, 3, 5]


def test_a_cache_that_has_grown_goes_back_where_libraries_find_little(module: ModuleType, device: torch.device) -> None:
    """They allocate beside PyTorch. What the steps need again is not given back each time."""
    module.empty_cache()
    module.set_capacity(240 * MIB)
    with torch_lms.session(limit=200 * MIB, policy="reactive") as lms:

        def step(sizes: list[int]) -> int:
            kept = [full(size, 1, device) for size in sizes]
            del kept
            before = lms.stats().reserved_bytes
            time.sleep(0.11)  # it is not looked at more often
            lms.step()
            return before - lms.stats().reserved_bytes

        assert step([MIB]) >= 4 * MIB
        assert step([10 * MIB]) >= 40 * MIB
        assert step([10 * MIB]) == 0
        assert lms.stats().allocated_bytes < lms.stats().reserved_bytes
        assert "reserved" in str(lms.stats())
        module.set_capacity(2000 * MIB)
        assert step([30 * MIB]) == 0  # enough is free


@pytest.mark.skipif(not IS_NATIVE, reason="no native interposer here")
def test_an_operation_between_two_moves_that_ran_out_of_memory(module: ModuleType, device: torch.device) -> None:
    """It passes without Python, has drawn before memory ran out, and is run again with other pages gone."""
    x = full(4 * MIB, 1, device)

    def step(before_the_draw: Callable[[], None] = lambda: None) -> torch.Tensor:
        kept = [x + number for number in range(6)]
        y = x * 2
        for _ in range(20):
            y = y + 1
        before_the_draw()
        y = torch.dropout(y, 0.5, train=True)
        for tensor in kept:
            y = y + tensor
        torch_lms.step() if torch_lms.is_enabled() else None
        return y.sum().cpu()

    torch.manual_seed(1)
    expected = [step() for _ in range(6)]
    with torch_lms.session(limit=100 * MIB, recompute=False) as lms:
        torch.manual_seed(1)
        found = [step() for _ in range(5)]
        assert lms.stats().planned_steps > 0
        assert lms.stats().recoveries == 0
        found.append(step(lambda: leave(16 * MIB, module)))
        assert lms.stats().recoveries > 0
        lms.validate()
        module.set_capacity(accelerator.CAPACITY)
    assert found == expected
