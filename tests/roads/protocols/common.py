"""What several protocols need."""

import ctypes
import io
from typing import Any

import torch


def at_address(x: torch.Tensor, address: int) -> memoryview:
    values = (ctypes.c_byte * (x.numel() * x.element_size())).from_address(address)
    return memoryview(values)


def saved(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


class Held(torch.nn.Module):
    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("held", x.detach())

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return y + self.held
