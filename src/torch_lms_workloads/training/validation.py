"""The metric, over all samples and all ranks."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torch_lms_workloads.data.batches import validation_batches
from torch_lms_workloads.data.datasets import Samples
from torch_lms_workloads.training.engines.base import Engine
from torch_lms_workloads.training.metrics import counting, new_metric
from torch_lms_workloads.training.placing import Placing
from torch_lms_workloads.training.ranks import Ranks
from torch_lms_workloads.workload import Workload


def validated(
    workload: Workload, engine: Engine, placing: Placing, model: nn.Module, data: Samples, batch: int, ranks: Ranks
) -> float:
    """Of ``model``, as the engine wrapped it; it is left as in training."""
    assert workload.metric is not None
    metric = new_metric(workload.metric, data.about.classes, data.about.ignored)
    called = engine.bare(model)
    model.eval()
    try:
        for images, targets in _batches(data, batch, ranks, runs_together=engine.runs_together):
            with torch.no_grad(), placing.autocast():
                found = workload.scores(called(placing.placed(images))).argmax(1).cpu()
            if targets is not None:
                with counting():
                    metric.update(found, targets)
    finally:
        model.train()
    with counting():
        return float(metric.compute())


def _batches(data: Samples, batch: int, ranks: Ranks, *, runs_together: bool) -> Iterator[tuple[Tensor, Tensor | None]]:
    """This rank's share; where ranks wait for each other, as many batches on each, the last ones without targets."""
    done = 0
    for images, targets in validation_batches(data, batch, rank=ranks.rank, ranks=ranks.count):
        yield images, targets
        done += 1
    if runs_together:
        most = math.ceil(math.ceil(len(data) / ranks.count) / batch)
        for _ in range(most - done):
            yield data[0][0].unsqueeze(0), None
