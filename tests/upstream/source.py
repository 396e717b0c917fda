"""What the command is given: a source tree, files in it. Errors are for the user."""

import re
from importlib.util import find_spec
from pathlib import Path

import click
import torch

FILES = {
    "test_autograd": 1,
    "test_torch": 3,
    "test_serialization": 1,
    "test_fake_tensor": 1,
    "test_subclass": 1,
    "test_python_dispatch": 1,
    "nn/test_convolution": 3,
    "test_optim": 40,
    "test_modules": 40,
    "test_nn": 10,
}
"""What runs by default, and of how many of its tests one: some files are long lists of the same for every operator."""

QUICK = 5
"""With ``--quick``, one in so many of these."""


def check_tree(folder: Path) -> str:
    """Whether ``folder`` is a source tree whose tests can be run; a warning if its version is another."""
    if find_spec("expecttest") is None:
        raise click.ClickException("PyTorch's tests need the package expecttest: pip install expecttest")
    if not (folder / "test").is_dir():
        raise click.ClickException(f"{folder} has no folder test: give the root of a source tree of PyTorch")
    version = folder / "version.txt"
    if not version.is_file():
        raise click.ClickException(f"{folder} has no version.txt: give the root of a source tree of PyTorch")
    told, installed = version.read_text().strip(), str(torch.__version__)
    its, ours = _numbers(told), _numbers(installed)
    if its[:1] != ours[:1]:
        raise click.ClickException(
            f"{folder} is PyTorch {told[:40]!r}, and {installed} is installed: "
            "give a source tree of the same major version"
        )
    if its == ours:
        return ""
    return f"{folder} is PyTorch {told}, and {installed} is installed: tests that fail plain for that are not counted"


def check_files(folder: Path, files: tuple[str, ...]) -> list[str]:
    """Names without ``.py``, relative to the folder ``test``."""
    names = [name.removesuffix(".py").removeprefix("test/") for name in files]
    for name in names:
        if not (folder / "test" / f"{name}.py").is_file():
            raise click.ClickException(f"{folder / 'test'} has no file {name}.py")
    return names


def _numbers(version: str) -> list[str]:
    """Major and minor."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return list(match.groups()) if match else []
