"""PyTorch's caching allocator of an accelerator: what it holds that is no page's."""

import time

import torch

from torch_lms.runtime.limits import margin

_LOOKS_EVERY_S = 0.1
_GROWTH = 1.25
"""Less than that more in the cache than when it was last emptied is what the program's steps need."""


class Allocator:
    """Of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device)
        self._looked_at = 0.0
        self._emptied_bytes = 0

    @property
    def allocated_bytes(self) -> int:
        """Given out to tensors, pages or not."""
        return int(self._module.memory_allocated(self._device))

    @property
    def reserved_bytes(self) -> int:
        """The same with what is cached: what the driver has given to PyTorch."""
        return int(self._module.memory_reserved(self._device))

    def shed(self) -> None:
        """Give the cache back to the driver, if that has grown while little else is free: libraries allocate there."""
        now = time.monotonic()
        if now - self._looked_at < _LOOKS_EVERY_S:
            return
        self._looked_at = now
        free, whole = self._module.mem_get_info(self._device)
        if free >= margin(whole):
            return
        cached = self.reserved_bytes - self.allocated_bytes
        if cached > self._emptied_bytes * _GROWTH:
            self._emptied_bytes = cached
            self._module.empty_cache()
