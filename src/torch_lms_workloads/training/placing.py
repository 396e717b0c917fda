"""How images go to a network: where they lie, in what order, and what is computed in."""

import torch
from torch import Tensor, nn

AMP = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Placing:
    """
    Attributes:
        device: where.
        dtype: what autocast computes in; None: there is none.
        memory_format: the order.
    """

    def __init__(self, device: torch.device, *, amp: str, channels_last: bool, dimensions: int) -> None:
        self.device = device
        self.dtype = AMP[amp]
        last = torch.channels_last if dimensions == 2 else torch.channels_last_3d
        self.memory_format = last if channels_last else torch.contiguous_format

    def placed(self, images: Tensor) -> Tensor:
        return images.to(self.device, non_blocking=True).contiguous(memory_format=self.memory_format)

    def model(self, model: nn.Module) -> nn.Module:
        placed: nn.Module = model.to(self.device).to(memory_format=self.memory_format)  # type: ignore[call-overload]
        return placed

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not None)
