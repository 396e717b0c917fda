"""The network of a checkpoint, for whole images: no tiles, so that it sees each with all that is around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About
from torch_lms_workloads.prediction.padding import cropped, padded
from torch_lms_workloads.training.checkpoints import read_checkpoint
from torch_lms_workloads.training.placing import Placing
from torch_lms_workloads.workload import Workload


class Answer(NamedTuple):
    """
    Attributes:
        classes: of each pixel or voxel (*sides), or of the image (), on the CPU.
        certainty: of one class for the image, 0 to 1; None otherwise.
    """

    classes: Tensor
    certainty: float | None


@dataclass(frozen=True)
class Trained:
    """
    Attributes:
        workload: what it is.
        path: its checkpoint.
        content: what that holds, but for tensors: they lie in the file, and could not be paged.
    """

    workload: Workload
    path: Path
    content: Mapping[str, Any]

    @property
    def about(self) -> About:
        """Of the data that it was trained with."""
        return About(**self.content["about"])

    @property
    def options(self) -> Mapping[str, Any]:
        """Of the network."""
        found: Mapping[str, Any] = self.content["recipe"]["options"]
        return found

    def network(self, placing: Placing) -> nn.Module:
        """With its weights, for prediction."""
        model = self.workload.build(**self.options)
        model.load_state_dict(read_checkpoint(self.path)["model"])
        return placing.model(model).eval()

    def answer(self, network: nn.Module, placing: Placing, image: Tensor) -> Answer:
        """Of one image (channels, *sides), at its own size."""
        given = padded(image, self.workload.bounds(self.options)).unsqueeze(0)
        with torch.no_grad(), placing.autocast():
            scores = self.workload.scores(network(placing.placed(given)))
            classes = scores.argmax(1)[0].cpu()
        if classes.ndim:
            return Answer(cropped(classes, tuple(image.shape[1:])), None)
        return Answer(classes, float(scores.float().softmax(1).max()))


def read_trained(workload: Workload, path: Path) -> Trained:
    """
    Raises:
        UsageError: no checkpoint, or another workload's.
    """
    content = read_checkpoint(path)
    name = content["recipe"]["workload"]
    if name != workload.name:
        raise UsageError(
            f"{path} is a checkpoint of {name}, not of {workload.name}: name that workload, or another file"
        )
    return Trained(workload, path, {part: content[part] for part in ("recipe", "about", "prepared", "data")})
