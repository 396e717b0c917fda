"""A workload: a network, what it is trained on, its loss, its metric and its optimizer, in one value."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_lms.errors import UsageError
from torch_lms_workloads.samples import Sample

Options = Mapping[str, Any]
MetricName = Literal["mIoU", "Dice", "top-1"]
Built = tuple[nn.Module, tuple[Tensor, ...], Callable[[Any], Tensor]]


@dataclass(frozen=True)
class Bounds:
    """What sizes and batches a network can take.

    Attributes:
        size: the least length of a side.
        batch: the least batch in training: batch normalization needs more than one value for each channel.
        multiple: what a size must be a multiple of.
    """

    size: int = 1
    batch: int = 1
    multiple: int = 1

    def check(self, name: str, size: int, batch: int) -> None:
        """
        Raises:
            UsageError: too small, or no multiple.
        """
        if size < self.size:
            raise UsageError(f"{name} needs a size of at least {self.size}; got {size}")
        if size % self.multiple:
            below = size - size % self.multiple
            raise UsageError(
                f"{name} needs a size that is a multiple of {self.multiple}, such as {max(below, self.size)} "
                f"or {below + self.multiple}; got {size}"
            )
        if batch < self.batch:
            raise UsageError(f"{name} needs a batch of at least {self.batch}; got {batch}")


@dataclass(frozen=True)
class OptimizerChoice:
    """An optimizer and its settings. Called with parameters, makes it."""

    kind: type[torch.optim.Optimizer]
    settings: Mapping[str, Any]

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return self.kind(parameters, **self.settings)


@dataclass(frozen=True)
class Workload:
    """What to train, and how. Called, makes a network with a batch for it: see ``__call__``.

    Attributes:
        name: as on the command line.
        title: for people.
        build: makes the network, of all options.
        sample: makes one batch of a size, of a number, and of all options.
        loss: of outputs and targets, a scalar.
        dimensions: of an input, channels aside: 1, 2 or 3; all have the same size.
        size, batch: those that the network was published with, or that are usual, on one device.
        optimizer: the same.
        options: what can be chosen, and what is taken otherwise.
        bounds: by the options, what the network can take.
        metric: mean intersection over union, Dice's coefficient without the background, or the share of images whose
            class was found. None: there are no data to train it on, and it is only planned and measured.
        channels: of an image.
        targets: what the loss takes, of what a data set has.
        scores: of the outputs without training, the logits of the classes.
    """

    name: str
    title: str
    build: Callable[..., nn.Module]
    sample: Callable[[int, int, Options], Sample]
    loss: Callable[[Any, Any], Tensor]
    dimensions: int
    size: int
    batch: int
    optimizer: OptimizerChoice
    options: Options = field(default_factory=dict)
    bounds: Callable[[Options], Bounds] = lambda options: Bounds()
    metric: MetricName | None = None
    channels: int = 3
    targets: Callable[[Tensor], Any] = lambda targets: targets
    scores: Callable[[Any], Tensor] = lambda outputs: outputs

    def __call__(self, size: int | None = None, batch: int | None = None, **options: Any) -> Built:
        """Make it, on the default device; under ``FakeTensorMode`` without taking memory.

        Returns:
            ``(model, inputs, loss)``: ``model(*inputs)`` gives the outputs, ``loss(outputs)`` the scalar to be trained.

        Raises:
            UsageError: an option that there is not, or a value that the network cannot have.
        """
        chosen = self.chosen(options)
        size, batch = self.size if size is None else size, self.batch if batch is None else batch
        self.bounds(chosen).check(self.name, size, batch)
        model = self.build(**chosen)
        inputs, targets = self.sample(size, batch, chosen)
        return model, inputs, partial(_compared, self.loss, targets)

    def chosen(self, options: Options) -> Options:
        """All options: these, and otherwise the workload's own.

        Raises:
            UsageError: one that there is not.
        """
        unknown = ", ".join(sorted(options.keys() - self.options.keys()))
        if unknown:
            raise UsageError(f"{self.name} takes {', '.join(['size', 'batch', *self.options])}; got {unknown}")
        return {**self.options, **options}


def _compared(loss: Callable[[Any, Any], Tensor], targets: Any, outputs: Any) -> Tensor:
    return loss(outputs, targets)
