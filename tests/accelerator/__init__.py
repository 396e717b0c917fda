"""A test accelerator: a device of PyTorch's PrivateUse1 kind, whose kernels are the CPU's own.

It has what the code for GPUs counts on: PyTorch's dispatcher and autograd threads, streams, events with times, a
caching allocator with a hard capacity whose memory belongs to streams, page-locked host memory, generators, autocast.
What a stream is asked is done by a thread of its own, as late as the schedule likes. The program cannot read the
device's memory; freed memory is poisoned.

    from tests import accelerator
    accelerator.install()
    torch.ones(3, device="testacc")
"""

import re
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.accelerator import device_module
from tests.accelerator.device_module import CAPACITY, NAME

__all__ = ["CAPACITY", "NAME", "WHY_NOT", "CannotBuild", "install"]

WHY_NOT = pytest.StashKey[str]()
"""Why these tests have no device, in pytest's configuration."""

_SOURCES = Path(__file__).parent / "csrc"


class CannotBuild(Exception):
    """There is no compiler that can build it; says why."""


@cache
def install() -> ModuleType:
    """Build the device unless that was done before, and have this process's PyTorch know it.

    Returns:
        Its module, as ``torch.cuda`` is CUDA's.

    Raises:
        CannotBuild: there is no compiler, or it fails.
    """
    device_module.install(_built())
    return device_module


def _built() -> ModuleType:
    if shutil.which("ninja") is None or not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise CannotBuild("the test accelerator needs a C++ compiler and ninja: apt install g++, pip install ninja")
    from torch.utils import cpp_extension  # after the check: it looks for a compiler

    try:
        return cpp_extension.load(
            name="torch_lms_test_accelerator_" + re.sub(r"\W", "_", torch.__version__),
            sources=[str(path) for path in sorted(_SOURCES.glob("*.cpp"))],
            extra_cflags=["-O1"],
        )
    except RuntimeError as error:
        raise CannotBuild(f"the test accelerator could not be built: {error}") from error
