"""What all tests share. Nothing here needs torch."""

import os
from pathlib import Path

import pytest

# MKL uses fewer threads at times on a busy machine, and with another number of threads it rounds in another way.
os.environ.setdefault("MKL_DYNAMIC", "FALSE")

# Tests count on plans being there at once. What makes them beside the program has tests of its own.
os.environ.setdefault("TORCH_LMS_PLANNING", "at-once")

if "PYTEST_XDIST_WORKER" in os.environ:  # tests side by side: each has a core
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ACCELERATOR = Path(__file__).parent / "accelerator"
GPU = Path(__file__).parent / "gpu"


def pytest_configure(config: pytest.Config) -> None:
    """Have a device, if nothing is asked for but tests that need one: beside others, "auto" would mean it there, too.

    That is the test accelerator. But tests/gpu run on a real one, if there is any.
    """
    asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    if not asked or not all(path.is_relative_to(ACCELERATOR) or path.is_relative_to(GPU) for path in asked):
        return
    import torch

    if torch.accelerator.is_available() and any(path.is_relative_to(GPU) for path in asked):
        return
    from tests import accelerator

    try:
        accelerator.install()
    except accelerator.CannotBuild as error:
        config.stash[accelerator.WHY_NOT] = str(error)
