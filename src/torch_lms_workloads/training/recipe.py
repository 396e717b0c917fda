"""What decides about the losses: two runs of the same recipe on the same data have the same."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError


@dataclass(frozen=True)
class Recipe:
    """
    Attributes:
        workload: its name.
        options: all of the network's.
        size, batch, accumulate, ranks: of a step: ``ranks * accumulate * batch`` samples.
        steps: in all.
        optimizer, lr, lr_policy, amp, channels_last, seed, parallel: as in ``Request``; nothing is left open.
    """

    workload: str
    options: Mapping[str, Any]
    size: int
    batch: int
    accumulate: int
    ranks: int
    steps: int
    optimizer: str
    lr: float
    lr_policy: str
    amp: str
    channels_last: bool
    seed: int
    parallel: str

    def plain(self) -> dict[str, Any]:
        """For a file."""
        return {**asdict(self), "options": dict(self.options)}

    def check_continues(self, earlier: Mapping[str, Any], path: Path) -> None:
        """
        Args:
            earlier: the recipe of a checkpoint, as ``plain`` gave it.
            path: the checkpoint.

        Raises:
            UsageError: this recipe would not go on as that one did.
        """
        ours = self.plain()
        if self.lr_policy == "constant":  # then nothing depends on how long the training is
            earlier = {**earlier, "steps": self.steps}
        differing = [name for name in ours if ours[name] != earlier.get(name)]
        if differing:
            told = "; ".join(f"{name} was {earlier.get(name)} and is {ours[name]}" for name in differing)
            raise UsageError(f"{path} cannot be resumed so: {told}. Give what it had, or another --checkpoint-dir")
