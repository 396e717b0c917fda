"""Equality to the bit."""

import torch


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Whether all tensors are equal, NaNs and signs of zero included."""
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.stride() == y.stride() and bits_of(x) == bits_of(y)
        for x, y in zip(a, b, strict=True)
    )


def bits_of(tensor: torch.Tensor) -> bytes:
    """The bytes of its elements, in their order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
