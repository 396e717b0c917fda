"""The samples that a workload is trained and validated with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.datasets import Samples, Wholes
from torch_lms_workloads.data.open import open_data, open_whole
from torch_lms_workloads.data.synthetic import synthetic
from torch_lms_workloads.data.volumes import Volumes
from torch_lms_workloads.training.choices import Choices
from torch_lms_workloads.workload import Options, Workload

CLASSES = "classes"


@dataclass(frozen=True)
class Material:
    """
    Attributes:
        training, validation: samples.
        options: all of the network's, to fit them.
        prepared: how volumes are prepared: what ``open_file`` takes. Nothing for pictures.
        given: the data set's options, as they were given.
    """

    training: Samples
    validation: Samples
    options: Options
    prepared: Mapping[str, Any]
    given: Mapping[str, Any]


def opened(workload: Workload, path: str, choices: Choices, *, size: int, seed: int) -> Material:
    """
    Raises:
        UsageError: the data are not as they should be, or not what the workload takes.
    """
    options = data_options(workload, choices)
    training = open_data(
        path, size=size, seed=seed, kind=choices.kind, split=choices.split, augment=choices.augment, **options
    )
    check(workload, training.about, path)
    validation = open_data(
        path, size=size, seed=seed, kind=choices.kind, split=choices.val_split, augment=False, **options
    )
    network = workload.chosen({**choices.network, CLASSES: training.about.classes})
    return Material(training, validation, network, _prepared(training), choices.of_data())


def opened_whole(workload: Workload, path: str, choices: Choices, *, size: int) -> Wholes:
    """The images to validate with, at their own size. Made-up ones have ``size``. Errors as above."""
    options = data_options(workload, choices)
    if choices.kind == synthetic.kind:
        options = {"size": size, **options}
    wholes = open_whole(path, split=choices.val_split, kind=choices.kind, **options)
    check(workload, wholes.about, path)
    return wholes


def data_options(workload: Workload, choices: Choices) -> dict[str, Any]:
    """The data set's options: made-up data are made for the workload."""
    if choices.kind != synthetic.kind:
        return dict(choices.data)
    return {
        "task": task_of(workload),
        "dimensions": workload.dimensions,
        CLASSES: workload.options[CLASSES],
        **choices.data,
    }


def _prepared(samples: Samples) -> dict[str, Any]:
    if not isinstance(samples.source, Volumes):
        return {}
    return {"spacing": samples.source.preparation.spacing, "modality": samples.source.preparation.modality}


def task_of(workload: Workload) -> str:
    """
    Raises:
        UsageError: there are no data for it.
    """
    if workload.metric is None:
        raise UsageError(f"{workload.name} cannot be trained here: it is there to be planned and measured")
    return "classification" if workload.metric == "top-1" else "segmentation"


def check(workload: Workload, about: About, path: str) -> None:
    """
    Raises:
        UsageError: the workload does not take such data.
    """
    wanted = (task_of(workload), workload.dimensions, workload.channels)
    found = (about.task, about.dimensions, about.channels)
    if wanted != found:
        raise UsageError(
            f"{workload.name} takes data for {_told(*wanted)}; {path} has data for {_told(*found)}: "
            "choose another workload, or other data"
        )


def _told(task: str, dimensions: int, channels: int) -> str:
    return f"{task}, of {dimensions} dimensions and {channels} channel{'s' if channels > 1 else ''}"
