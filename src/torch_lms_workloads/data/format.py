"""A format of data sets: how it is recognized and opened, in one value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError
from torch_lms_workloads.data.source import Source


@dataclass(frozen=True)
class Format:
    """
    Attributes:
        kind: its name.
        looked_for: what a folder of it holds, for people.
        fits: whether a folder looks like one, by names alone.
        source: opens one split: of the folder, of the split's name, and of all options.
        options: what can be chosen, and what is taken otherwise.
    """

    kind: str
    looked_for: str
    fits: Callable[[Path], bool]
    source: Callable[..., Source]
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self, root: Path, split: str, options: Mapping[str, Any]) -> Source:
        """
        Raises:
            UsageError: an option that there is not, or data that are not as they should be.
        """
        unknown = ", ".join(sorted(options.keys() - self.options.keys()))
        if unknown:
            known = ", ".join(self.options) or "no options"
            raise UsageError(f"data of the kind {self.kind} take {known}; got {unknown}")
        return self.source(root, split, **{**self.options, **options})
