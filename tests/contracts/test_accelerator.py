"""What of a real accelerator's device can be tried without one: page-locking, streams, what counts as out of memory."""

import gc
import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torch_lms.errors import StoreFullError, UsageError
from torch_lms.runtime import allocator
from torch_lms.runtime.accelerator import AcceleratorDevice
from torch_lms.stores.host import HostStore

MB = 1 << 20


class Runtime:
    """Stands for CUDA's."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.status = 0

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert address % 4096 == 0
        if not self.status:
            self.locked[address] = nbytes
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


class Module:
    """Stands for ``torch.cuda``."""

    def __init__(self) -> None:
        self.stream_id = 0

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: torch.device) -> Any:
        return SimpleNamespace(stream_id=self.stream_id)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return runtime


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    return module


@pytest.fixture
def device(module: Module) -> AcceleratorDevice:
    return AcceleratorDevice(torch.device("cuda", 0))


def test_page_locked_memory_is_locked_as_long_as_it_lives(device: AcceleratorDevice, runtime: Runtime) -> None:
    memory = device.page_lock(3 * MB + 5)
    assert memory.shape == (3 * MB + 5,)
    assert runtime.locked == {memory.data_ptr(): 3 * MB + 5}
    memory[-1] = 7
    part = memory[5:]
    del memory
    gc.collect()
    assert len(runtime.locked) == 1
    del part
    assert runtime.locked == {}


def test_a_closed_store_unlocks_everything(device: AcceleratorDevice, runtime: Runtime) -> None:
    store = HostStore(8 * MB, device.page_lock, slab_bytes=MB)
    slots = [store.reserve(MB) for _ in range(3)]
    assert len(runtime.locked) == 3
    del slots
    store.close()
    assert runtime.locked == {}


def test_a_refusal_is_a_full_store_and_leaves_no_error_behind(
    device: AcceleratorDevice, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: list[Any] = []

    def ones(*args: Any, **kwargs: Any) -> None:
        kernels.append(kwargs["device"])
        raise RuntimeError("CUDA error: out of memory")  # the old error, told to the next kernel

    monkeypatch.setattr(torch, "ones", ones)
    runtime.status = 2
    with pytest.raises(StoreFullError, match=r"1.05 MB.*CUDA error 2.*ulimit -l"):
        device.page_lock(MB)
    assert kernels == [device.device]
    gc.collect()


def test_a_forked_child_leaves_the_parents_memory_alone(device: AcceleratorDevice, runtime: Runtime) -> None:
    memory = device.page_lock(MB)
    child = os.fork()
    if child == 0:
        del memory
        os._exit(len(runtime.locked))  # 1: nothing was unlocked
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    memory.zero_()


def test_the_same_stream_is_always_the_same_object(device: AcceleratorDevice, module: Module) -> None:
    default = device.current_stream()
    module.stream_id = 3
    side = device.current_stream()
    assert side is not default
    assert side is device.current_stream()
    module.stream_id = 0
    assert device.current_stream() is default


def test_copies_and_allocations_run_on_the_stream_they_are_told(
    device: AcceleratorDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[Any] = []
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceIndex", lambda: 1)
    monkeypatch.setattr(torch._C, "_accelerator_getStream", lambda index: f"the stream before of {index}")
    monkeypatch.setattr(torch._C, "_accelerator_setStream", entered.append)
    monkeypatch.setattr(torch._C, "_accelerator_setDeviceIndex", entered.append)
    stream = device.current_stream()
    target, source = torch.zeros(3), torch.ones(3)
    device.copy(target, source, stream)
    assert target.tolist() == [1, 1, 1]
    storage = torch.UntypedStorage(8)
    device.free(storage)
    assert storage.nbytes() == 0
    device.allocate(storage, 16, stream)
    assert storage.nbytes() == 16
    assert entered == [stream.native, "the stream before of 0", 1] * 2


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ["expandable_segments:True"]),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, ["max_split_size_mb:64,expandable_segments:True"]),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, ["max_split_size_mb:64,expandable_segments:True"]),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, []),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, []),
    ],
)
def test_free_memory_is_joined_unless_the_user_has_chosen(
    environment: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told: list[str] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", lambda _: None, raising=False)
    allocator._prepare_cuda.__wrapped__()
    assert told == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (MemoryError(), False),
    ],
)
def test_what_counts_as_out_of_memory(device: AcceleratorDevice, error: Exception, expected: bool) -> None:
    assert device.is_out_of_memory(error) == expected


def test_a_device_without_streams_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    with pytest.raises(UsageError, match="mps devices have no streams"):
        AcceleratorDevice(torch.device("mps"))
