"""PyTorch's caching allocator of an accelerator: what it holds that is no page's."""

import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from torch_lms.runtime.limits import margin

_LOOKS_EVERY_S = 0.1
_GROWTH = 1.25
"""Less than that more in the cache than when it was last emptied is what the program's steps need."""


_failures = 0


@cache
def _hear_of_failures() -> None:
    """Count requests that nothing could be found for, also where an operation goes on without what it asked for."""

    def failed(*_: int) -> None:
        global _failures
        _failures += 1

    with suppress(RuntimeError):  # not every allocator tells
        attach: Any = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]  # of builds for CUDA
        attach(failed)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the allocator counts: bytes given out now, the most there have been at once, all that were freed so far; and
    requests that failed.
    """

    now: int
    peak: int
    freed: int
    failures: int

    def most_taken_since(self, before: "Counted") -> int:
        """At most so many bytes were given out and freed again since ``before``, and held at once."""
        return max(0, min(self.freed - before.freed, self.peak - self.now))


class Allocator:
    """Of one device."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda":
            _hear_of_failures()
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

    def counted(self) -> Counted:
        """Its counts by now; zeros where it has none."""
        stats: dict[str, Any] = getattr(self._module, "memory_stats_as_nested_dict", lambda _: {})(self._device)
        found = stats.get("allocated_bytes", {}).get("all", {})
        return Counted(found.get("current", 0), found.get("peak", 0), found.get("freed", 0), _failures)

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
