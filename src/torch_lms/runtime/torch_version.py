"""Warns of a PyTorch that is newer than any on which torch-lms was tested."""

import re
import warnings
from functools import cache

import torch

NEWEST_TESTED = (2, 15)
"""As the cap in pyproject.toml, and the last row of docs/compatibility.md."""


class UntestedTorchWarning(UserWarning):
    """This PyTorch is newer than any on which torch-lms was tested. It works all the same, as far as is known."""


def warn_if_untested() -> None:
    """Warn, once in a process, if this PyTorch's minor version is newer than any tested one."""
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if match is not None and (int(match[1]), int(match[2])) > NEWEST_TESTED:
        _warn(torch.__version__)


@cache
def _warn(version: str) -> None:
    newest = ".".join(map(str, NEWEST_TESTED))
    warnings.warn(
        f"torch-lms was not tested on PyTorch {version}, only up to {newest}. To see whether anything broke, run its "
        "tests: python -m tests.versions in a clone",
        UntestedTorchWarning,
        stacklevel=5,  # where enable() was called
    )
