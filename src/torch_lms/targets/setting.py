"""How a step of a target is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AMP = {"no": None, "bf16": "bfloat16", "fp16": "float16"}
"""The choices of ``--amp``, and the name of torch's type for each."""


@dataclass(frozen=True)
class Setting:
    """How a step is asked for.

    Attributes:
        size, batch: None for the target's own; ``batch`` is over all ``gpus``.
        options: the target's options.
        optimizer: the name of an optimizer in torch.optim; None for the target's own.
        amp: a key of ``AMP``.
        dtype: the model's type, as in "float32"; None for its own.
        lora: rank of the adapters that are trained instead of the model; None to train the model.
        is_inference: whether the step is a forward pass only.
        checkpoints: whether blocks are checkpointed.
        device: the device whose operations are traced, "cpu" or "cuda".
        gpus: how many share the batch.
    """

    size: int | None = None
    batch: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str | None = None
    amp: str = "no"
    dtype: str | None = None
    lora: int | None = None
    is_inference: bool = False
    checkpoints: bool = False
    device: str = "cuda"
    gpus: int = 1
