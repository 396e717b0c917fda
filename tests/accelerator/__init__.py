"""A test accelerator: a device of PyTorch's PrivateUse1 kind, whose kernels are the CPU's own.

It has what the code for GPUs counts on: PyTorch's dispatcher and autograd threads, streams, events with times, a
caching allocator with a hard capacity whose memory belongs to streams, page-locked host memory, generators, autocast.
What a stream is asked is done by a thread of its own, as late as the schedule likes. The program cannot read the
device's memory; freed memory is poisoned.

    from tests import accelerator
    accelerator.install()
    torch.ones(3, device="testacc")

A process whose environment is ``autoloading()`` has it from its first ``import torch`` on, as it has a vendor's device:
PyTorch finds the entry point in the folder ``autoload``.
"""

import fcntl
import os
import shutil
from functools import cache
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from subprocess import SubprocessError
from types import ModuleType

import pytest
import torch
from torch.utils import cpp_extension

from tests.accelerator import device_module
from tests.accelerator.device_module import CAPACITY, NAME

__all__ = ["CAPACITY", "NAME", "WHY_NOT", "CannotBuild", "autoloading", "first_device", "install"]

WHY_NOT = pytest.StashKey[str]()
"""Why these tests have no device, in pytest's configuration."""

_HERE = Path(__file__).parent
_SOURCES = _HERE / "csrc"


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


def first_device() -> torch.device:
    """The first of its devices, installed. Errors as for ``install``."""
    install()
    return torch.device(NAME, 0)


def autoloading() -> dict[str, str]:
    """This process's environment, with which another's PyTorch loads the device by itself."""
    path = [str(_HERE / "autoload"), str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _built() -> ModuleType:
    """The compiled part. It is built once for these sources and this PyTorch, by one process, and kept."""
    sources = sorted(_SOURCES.iterdir())
    digest = sha256(torch.__version__.encode() + b"".join(path.read_bytes() for path in sources)).hexdigest()
    name = f"torch_lms_test_accelerator_{digest[:12]}"
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()) / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "one builds").open("w") as one:
        fcntl.flock(one, fcntl.LOCK_EX)  # unlike the lock of cpp_extension, it ends with whoever has it
        if not (folder / "is built").exists():
            (folder / "lock").unlink(missing_ok=True)
            _build(name, folder, [str(path) for path in sources if path.suffix == ".cpp"])
            (folder / "is built").touch()
    spec = spec_from_file_location(name, folder / f"{name}.so")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(name: str, folder: Path, sources: list[str]) -> None:
    if shutil.which("ninja") is None or not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise CannotBuild("the test accelerator needs a C++ compiler and ninja: apt install g++, pip install ninja")
    try:
        cpp_extension.load(name, sources, extra_cflags=["-O1"], build_directory=str(folder), is_python_module=False)
    except (RuntimeError, OSError, SubprocessError) as error:
        raise CannotBuild(f"the test accelerator could not be built: {error}") from error
