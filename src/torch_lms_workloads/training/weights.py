"""A network's initial weights, from a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torch_lms.errors import UsageError
from torch_lms_workloads.training.checkpoints import read

NAMED = 3
"""How many names a message lists."""


def take_weights(model: nn.Module, path: Path) -> str:
    """Take from a checkpoint, or a file of named tensors, what has the model's names and shapes.

    Returns:
        What was taken, and what not, for people.

    Raises:
        UsageError: no such file, or nothing in it fits.
    """
    found = _tensors(read(path, "give a checkpoint, or a file that torch.save made of a model's state_dict"))
    own = model.state_dict()
    fitting = {name: value for name, value in found.items() if name in own and value.shape == own[name].shape}
    if not fitting:
        raise UsageError(f"--init {path}: none of its {len(found)} tensors has a name and a shape of this network")
    model.load_state_dict(fitting, strict=False)
    left = [name for name in own if name not in fitting]
    more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
    begins = f"; as without it: {', '.join(left[:NAMED])}{more}" if left else ""
    return f"{path}: {len(fitting)} of {len(own)} tensors taken{begins}"


def _tensors(content: Any) -> Mapping[str, Tensor]:
    """Of a checkpoint of ours or of others, the part that holds the model."""
    for part in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(part), Mapping):
            content = content[part]
    named = content if isinstance(content, Mapping) else {}
    return {str(name).removeprefix("module."): value for name, value in named.items() if isinstance(value, Tensor)}
