"""What a device can hold now."""


def room_bytes(device: str) -> int:
    """The bytes that ``limit="auto"`` would be on ``device``: "cpu", or an accelerator."""
    import torch

    from torch_lms.runtime.limits import auto_limit

    return auto_limit(torch.device(device)).nbytes
