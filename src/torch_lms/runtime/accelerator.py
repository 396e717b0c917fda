"""Real accelerators as stream devices: CUDA and ROCm, and whatever else `torch.accelerator` drives."""

import os
import weakref
from contextlib import suppress
from typing import Any

import torch

from torch_lms.capture.unobserved import Undispatched
from torch_lms.errors import StoreFullError, UsageError
from torch_lms.runtime.allocator import has_seen
from torch_lms.runtime.device import StreamDevice, StreamEvent
from torch_lms.runtime.executor import bytes_of, empty_storage, fill_storage
from torch_lms.stores.spill_file import aligned_buffer
from torch_lms.units import format_bytes

_OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "Cuda failure 2 'out of memory'",
    "HIP error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
)
"""What libraries say that allocate beside PyTorch. cuBLAS says "not initialized" when its handle finds no room."""

_REMEDY = "lower host_limit, or raise the limit on locked memory (ulimit -l)"
_REGISTER_PORTABLE = 1


class _Stream:
    """A stream, compared by identity: PyTorch's own compare by value in Python code, and every operation would pay."""

    __slots__ = ("native",)

    def __init__(self, native: Any) -> None:
        self.native = native


class _On:
    """Inside, a stream is the current one. PyTorch's own context asks each time whether there is a device at all."""

    __slots__ = ("_device", "_index", "_stream", "_stream_before")

    def __init__(self, index: int, stream: _Stream) -> None:
        self._index, self._stream = index, stream

    def __enter__(self) -> None:
        self._device = torch._C._accelerator_getDeviceIndex()
        self._stream_before = torch._C._accelerator_getStream(self._index)
        torch._C._accelerator_setStream(self._stream.native)

    def __exit__(self, *_: object) -> None:
        torch._C._accelerator_setStream(self._stream_before)
        if self._device != self._index:
            torch._C._accelerator_setDeviceIndex(self._device)


class AcceleratorDevice(StreamDevice):
    """One device of `torch.accelerator`'s kind.

    Raises:
        UsageError: it has no streams.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module = torch.get_device_module(device)
        if not hasattr(self._module, "current_stream"):
            raise UsageError(f'{device.type} devices have no streams, and cannot be paged: choose device="cpu"')
        self._index = self._module.current_device() if device.index is None else device.index
        self._current_address = getattr(torch._C, f"_{device.type}_getCurrentRawStream", None)
        self._streams: dict[int, _Stream] = {}
        self._by_number: dict[int, _Stream] = {}

    def current_stream(self) -> _Stream:
        # asked for every operation: PyTorch would make a new object each time
        address = self._current_address
        key = self._module.current_stream(self.device).stream_id if address is None else address(self._index)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(self._module.current_stream(self.device))
            self._by_number[self.id_of(stream)] = stream
        return stream

    def id_of(self, stream: _Stream) -> int:
        return int(stream.native.stream_id)

    def stream_of(self, number: int) -> _Stream:
        return self._by_number[number]

    def new_stream(self) -> _Stream:
        return _Stream(self._module.Stream(self.device))

    def on(self, stream: _Stream) -> "_On":
        return _On(self._index, stream)

    def record(self, stream: _Stream) -> StreamEvent:
        event = self._module.Event(enable_timing=True)
        event.record(stream.native)
        return event

    def seconds_between(self, first: StreamEvent, second: StreamEvent) -> float:
        return float(first.elapsed_time(second)) / 1e3

    def wait(self, stream: _Stream, event: StreamEvent) -> None:
        stream.native.wait_event(event)

    def synchronize(self, event: StreamEvent) -> None:
        event.synchronize()

    def reached(self, event: StreamEvent) -> bool:
        return bool(event.query())

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: _Stream) -> None:
        with self.on(stream):
            target.copy_(source, non_blocking=True)

    def allocate(self, storage: torch.UntypedStorage, nbytes: int, stream: _Stream) -> None:
        with self.on(stream):
            fill_storage(storage, nbytes)

    def free(self, storage: torch.UntypedStorage) -> None:
        empty_storage(storage)

    def keep_for(self, storage: torch.UntypedStorage, stream: _Stream) -> None:
        with Undispatched(), torch.no_grad():  # no operation of the user's
            self.bytes_of(storage).record_stream(stream.native)

    def bytes_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        return bytes_of(storage)

    def page_lock(self, nbytes: int) -> torch.Tensor:
        """On CUDA exactly ``nbytes``: PyTorch's own page-locking allocator rounds up to a power of two (N17)."""
        if self.device.type == "cuda":
            return self._register(nbytes)
        try:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise StoreFullError(f"no {format_bytes(nbytes)} of page-locked memory ({error}); {_REMEDY}") from error

    def _register(self, nbytes: int) -> torch.Tensor:
        # Pages of its own, none shared with what malloc put beside it: a page can be locked only once. And a mapping
        # that a fork shares: with a private one, the parent's next write would go to a copy that the device knows not.
        memory = aligned_buffer(nbytes)
        runtime = torch.cuda.cudart()
        with torch.cuda.device(self.device):
            status = int(runtime.cudaHostRegister(memory.ctypes.data, nbytes, _REGISTER_PORTABLE))
            if status:
                # CUDA keeps the error for whoever asks next: let it be us, not the program's next kernel
                with suppress(RuntimeError):
                    torch.ones(1, device=self.device)
        if status:
            raise StoreFullError(
                f"the driver refused to page-lock {format_bytes(nbytes)} on the host (CUDA error {status}); {_REMEDY}"
            )
        # The array dies before its mapping does. At the end of the process copies may still be under way, so the
        # system cleans up then; in a forked child CUDA must not be called.
        weakref.finalize(memory, _unregister, runtime, memory.ctypes.data, os.getpid()).atexit = False
        return torch.from_numpy(memory)

    def is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, torch.OutOfMemoryError):
            has_seen(error)
            return True
        return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)

    def drain(self) -> None:
        torch.accelerator.synchronize(self.device)

    def trim(self) -> None:
        self._module.empty_cache()


def _unregister(runtime: Any, address: int, owner: int) -> None:
    if os.getpid() == owner:
        runtime.cudaHostUnregister(address)
