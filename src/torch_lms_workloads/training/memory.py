"""What is used, and running out of it."""

import resource

import torch

_SIGNS = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")
"""In messages of torch's CPU allocator and of C++."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device, or the host, had no room left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def peak_bytes(device: torch.device) -> int:
    """The most so far: of tensors on an accelerator; on the CPU of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
