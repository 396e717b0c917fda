"""How much a device can hold (N7)."""

from dataclasses import dataclass

import torch

from torch_lms.errors import UsageError
from torch_lms.machine.memory import read_host_memory

_MARGIN_SHARE = 0.05
"""Of a host's free memory, and of an accelerator's whole: workspaces do not become smaller where little is left."""

_FIGURES = ("mem_get_info", "memory_reserved", "memory_allocated")
"""What the module of an accelerator has to have."""

_MIN_MARGIN = 256 << 20
"""Kept free for what is not a page: workspaces of operations, small tensors, the allocator's fragments."""


@dataclass(frozen=True, slots=True)
class AutoLimit:
    """What "auto" chooses: ``nbytes`` more may be taken, because of ``reason``. A percentage is of ``whole``."""

    nbytes: int
    reason: str
    whole: int


def margin(whole: int) -> int:
    """Bytes to leave free of ``whole``."""
    return max(_MIN_MARGIN, int(whole * _MARGIN_SHARE))


def tells_memory(device: torch.device) -> bool:
    """Whether PyTorch can say how much ``device`` has, and what of that its allocator holds."""
    return all(hasattr(torch.get_device_module(device), name) for name in _FIGURES)


def auto_limit(device: torch.device, workspace_bytes: int = 0) -> AutoLimit:
    """What ``device`` can still hold now, less a margin.

    Args:
        device: of any kind.
        workspace_bytes: an accelerator has to have room for, at once.

    Raises:
        UsageError: PyTorch has no figures of such a device.
    """
    return _of_host() if device.type == "cpu" else _of_accelerator(device, workspace_bytes)


def _of_host() -> AutoLimit:
    memory = read_host_memory()
    name, free = memory.binding()
    wholes = {"RLIMIT_DATA": memory.rlimit_data, "RLIMIT_AS": memory.rlimit_as, "cgroup limit": memory.cgroup_limit}
    kept = min(margin(free), free // 2)  # where there is little, half is left to pages
    return AutoLimit(free - kept, name, wholes.get(name) or memory.total)


def _of_accelerator(device: torch.device, workspace_bytes: int) -> AutoLimit:
    module = torch.get_device_module(device)
    if not tells_memory(device):
        raise UsageError(f'{device.type} devices do not tell their memory, and cannot be paged: choose device="cpu"')
    if device.index is None:  # CUDA's per-process fraction is told of numbered devices only
        device = torch.device(device.type, module.current_device())
    free, total = module.mem_get_info(device)
    fraction = getattr(module, "get_per_process_memory_fraction", lambda _: 1.0)(device)
    allowed, reserved = int(total * fraction), module.memory_reserved(device)
    reason = "device memory" if fraction >= 1 else f"per-process fraction {fraction:.3g} of device memory"
    cached = reserved - module.memory_allocated(device)
    left = min(free, max(0, allowed - reserved)) + cached
    kept = max(margin(allowed), workspace_bytes + margin(allowed) // 2)
    return AutoLimit(max(0, left - kept), reason, allowed)
