"""What a device can hold now, for commands."""


def room_bytes(device: str) -> int:
    """Of "cpu" or an accelerator: what ``limit="auto"`` would be."""
    import torch

    from torch_lms.runtime.limits import auto_limit

    return auto_limit(torch.device(device)).nbytes
