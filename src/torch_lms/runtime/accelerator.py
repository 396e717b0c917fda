"""Real accelerators as stream devices: CUDA and ROCm, and whatever else `torch.accelerator` drives."""

import weakref

import torch

from torch_lms.errors import StoreFullError
from torch_lms.runtime.streams import Stream, StreamDevice, StreamEvent
from torch_lms.units import format_bytes


class AcceleratorDevice(StreamDevice):
    """One device of `torch.accelerator`'s kind."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module = torch.get_device_module(device)

    def current_stream(self) -> Stream:
        return self._module.current_stream(self.device)

    def new_stream(self) -> Stream:
        return self._module.Stream(self.device)

    def record(self, stream: Stream) -> StreamEvent:
        event = self._module.Event()
        event.record(stream)
        return event

    def wait(self, stream: Stream, event: StreamEvent) -> None:
        stream.wait_event(event)

    def synchronize(self, event: StreamEvent) -> None:
        event.synchronize()

    def reached(self, event: StreamEvent) -> bool:
        return bool(event.query())

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        with self._module.stream(stream):
            target.copy_(source, non_blocking=True)

    def bytes_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)

    def page_lock(self, nbytes: int) -> torch.Tensor:
        """On CUDA exactly ``nbytes``: PyTorch's own page-locking allocator rounds up to a power of two (N17)."""
        if self.device.type != "cuda":
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        tensor = torch.empty(nbytes, dtype=torch.uint8)
        address = torch._C.TensorBase.data_ptr(tensor)
        runtime = torch.cuda.cudart()
        status = int(runtime.cudaHostRegister(address, nbytes, 0))
        if status:
            raise StoreFullError(
                f"the driver refused to page-lock {format_bytes(nbytes)} of host memory (CUDA error {status}); "
                f"lower host_limit, or raise the limit on locked memory (ulimit -l)"
            )
        weakref.finalize(tensor.untyped_storage(), runtime.cudaHostUnregister, address)
        return tensor

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, torch.OutOfMemoryError)

    def trim(self) -> None:
        self._module.empty_cache()
