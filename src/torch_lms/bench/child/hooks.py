"""Saved-tensor hooks that keep elsewhere what backward needs, and count what they move."""

from typing import Any

import torch
from torch import Tensor

from torch_lms.runtime.executor import memory_of
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.spill_dir import default_spill_dir

_MIN_BYTES = 1 << 20


class DiskHooks:
    """Writes to the same kind of spill file as LMS does, and waits for it.

    Attributes:
        evicted_bytes, fetched_bytes: moved so far.
        held_bytes, peak_bytes: on the disk, now and at most.
    """

    def __init__(self) -> None:
        self._disk = DiskStore(default_spill_dir())
        self.evicted_bytes = 0
        self.fetched_bytes = 0
        self.held_bytes = 0
        self.peak_bytes = 0

    def pack(self, tensor: Tensor) -> Any:
        """Below 1 MiB, and for what is held anyway (leaves), the tensor itself."""
        if tensor.nbytes < _MIN_BYTES or tensor.is_leaf or not tensor.is_contiguous():
            return tensor
        slot = self._disk.reserve(tensor.nbytes)
        self._disk.write(slot, memory_of(tensor.detach().reshape(-1).view(torch.uint8))).wait()
        self.evicted_bytes += tensor.nbytes
        self.held_bytes += tensor.nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return slot, tensor.shape, tensor.dtype

    def unpack(self, packed: Any) -> Tensor:
        """Each tensor is asked for once here: steps run backward once."""
        if isinstance(packed, Tensor):
            return packed
        slot, shape, dtype = packed
        found = torch.empty(shape, dtype=dtype)
        self._disk.read(slot, memory_of(found.view(-1).view(torch.uint8))).wait()
        self._disk.release(slot)
        self.fetched_bytes += found.nbytes
        self.held_bytes -= found.nbytes
        return found


class CountedSaveOnCpu:
    """PyTorch's ``save_on_cpu``, with page-locked memory, and a count of what it moves. Attributes as above."""

    def __init__(self) -> None:
        hooks: Any = torch.autograd.graph.save_on_cpu(pin_memory=True)
        self._pack, self._unpack = hooks.pack_hook, hooks.unpack_hook
        self.evicted_bytes = 0
        self.fetched_bytes = 0
        self.held_bytes = 0
        self.peak_bytes = 0

    def pack(self, tensor: Tensor) -> Any:
        """Copy it to the host."""
        self.evicted_bytes += tensor.nbytes
        self.held_bytes += tensor.nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return self._pack(tensor)

    def unpack(self, packed: Any) -> Tensor:
        """Copy it back."""
        found: Tensor = self._unpack(packed)
        self.fetched_bytes += found.nbytes
        self.held_bytes -= found.nbytes
        return found
