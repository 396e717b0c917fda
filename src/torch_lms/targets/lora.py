"""Adapters instead of the whole model: LoRA, as peft makes it."""

import warnings
from typing import TYPE_CHECKING, cast

from torch_lms.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


def with_lora(model: "nn.Module", rank: int) -> "nn.Module":
    """``model``, frozen, with adapters of ``rank`` at every linear layer but that of the output.

    Raises:
        UsageError: peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UsageError(f"--lora needs peft ({error}): pip install 'torch-lms[transformers]'") from error
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # between peft and transformers
        return cast("nn.Module", get_peft_model(model, adapters))
