"""Options that are given by name: some are the network's, some the data set's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_lms.errors import UsageError
from torch_lms_workloads.data.open import format_of
from torch_lms_workloads.workload import Workload

OF_ALL_DATA = ("kind", "split", "val_split", "augment")
"""Options of every data set."""


@dataclass(frozen=True)
class Choices:
    """
    Attributes:
        network: options of the workload.
        kind: of the data set.
        data: options of the data set's format.
        split, val_split: to train and to validate with.
        augment: None: as the split's name says.
    """

    network: Mapping[str, Any]
    kind: str
    data: Mapping[str, Any]
    split: str
    val_split: str
    augment: bool | None

    def of_data(self) -> dict[str, Any]:
        """What belongs to the data set, as ``divided`` takes it."""
        return {"kind": self.kind, "split": self.split, "val_split": self.val_split, **self.data}


def divided(workload: Workload, path: str, given: Mapping[str, Any]) -> Choices:
    """``given``, to whom each belongs. What both have, the number of classes, is the data set's.

    Raises:
        UsageError: no such option, or no such data.
    """
    form = format_of(path, given.get("kind"))
    known = [*OF_ALL_DATA, *form.options, *workload.options]
    unknown = ", ".join(sorted(given.keys() - set(known)))
    if unknown:
        raise UsageError(
            f"--set takes {', '.join(workload.options)} of {workload.name}, {', '.join(form.options) or 'nothing'} of "
            f"data of the kind {form.kind}, and {', '.join(OF_ALL_DATA)}; got {unknown}"
        )
    return Choices(
        network={name: value for name, value in given.items() if name in workload.options and name not in form.options},
        kind=form.kind,
        data={name: value for name, value in given.items() if name in form.options},
        split=given.get("split", "train"),
        val_split=given.get("val_split", "val"),
        augment=given.get("augment"),
    )
