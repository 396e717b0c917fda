"""PyTorch's caching allocator of an accelerator: what it holds that is no page's."""

import logging
import os
import re
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

_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_HAS_CHOSEN = re.compile(r"expandable_segments\s*:|backend\s*:\s*cudaMallocAsync")

_log = logging.getLogger("torch_lms")

_failures = 0
"""Requests that nothing could be found for, in this process."""

_errors = 0
"""Those of which an error came that LMS has seen."""


def chosen_settings() -> str:
    """Of CUDA's allocator, as the environment has them."""
    return next(filter(None, map(os.environ.get, _SETTINGS)), "")


@cache
def _prepare_cuda() -> None:
    """Have free pieces of memory joined, unless the user has chosen. And count requests that fail: some operations go
    on without what they asked for.
    """

    def failed(*_: int) -> None:
        global _failures
        _failures += 1

    settings = chosen_settings()
    if torch.version.cuda is not None and not _HAS_CHOSEN.search(settings):
        torch._C._accelerator_setAllocatorSettings(",".join(filter(None, (settings, "expandable_segments:True"))))
    with suppress(RuntimeError):  # not every allocator tells
        attach: Any = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]  # of builds for CUDA
        attach(failed)


def has_seen(error: BaseException) -> None:
    """Somebody deals with ``error``, which says that a request failed."""
    global _errors
    if not hasattr(error, "seen_by_torch_lms"):
        error.seen_by_torch_lms = True  # type: ignore[attr-defined]
        _errors += 1


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes that the allocator has given out now, the most there have been at once, and all that were freed so far."""

    now: int
    peak: int
    freed: int

    def most_taken_since(self, before: "Counted") -> int:
        """At most so many bytes were given out and freed again since ``before``, and held at once."""
        return max(0, min(self.freed - before.freed, self.peak - self.now))


class Allocator:
    """Of one device."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda":
            _prepare_cuda()
        self._device = device
        self._silent = _failures - _errors
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
        return Counted(found.get("current", 0), found.get("peak", 0), found.get("freed", 0))

    def tell_of_failures(self) -> None:
        """Say so if operations went on without memory that they asked for: results may not be those of stock then."""
        silent = _failures - _errors
        if silent > self._silent:
            _log.warning(
                "PyTorch found no memory for %d requests and went on without, as convolutions do by another algorithm: "
                "they may round in another way than with more memory. Lower the limit, or use smaller batches",
                silent - self._silent,
            )
            self._silent = silent

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
