"""Runs `torch-lms train` and its like in this process, on data small enough for a test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from torch_lms.cli.main import group

VOLUMES = (
    *("unet3d", "--data", "synthetic", "--size", "32", "--batch", "1"),
    *("--set", "length=2", "--set", "levels=3", "--set", "channels=8", "--deterministic"),
)
"""A network for volumes whose larger tensors can be paged."""

PICTURES = (
    *("deeplabv3plus", "--data", "synthetic", "--size", "33", "--batch", "2"),
    *("--set", "length=2", "--set", "backbone=mobilenetv2_100", "--set", "classes=4", "--deterministic"),
)

OBJECTS = (
    *("googlenet", "--data", "synthetic", "--size", "64", "--batch", "2"),
    *("--set", "length=6", "--set", "classes=3", "--deterministic"),
)
"""Has dropout."""


def run(command: str, *arguments: object) -> Result:
    return CliRunner().invoke(group, [command, *map(str, arguments)])


def done(command: str, folder: Path, *arguments: object) -> dict[str, Any]:
    """What the command wrote as JSON."""
    target = folder / f"{command}.json"
    result = run(command, *arguments, "--json", target)
    assert result.exit_code == 0, (result.output, result.exception)
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def on_two_ranks(folder: Path, *arguments: object) -> dict[str, Any]:
    """The same, of two processes that torchrun starts."""
    target = folder / "ranks.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "torch_lms", "train", *map(str, arguments), "--json", str(target)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    assert ended.stdout.count("parameters") == 1  # one rank speaks
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def close(losses: list[str], others: list[str]) -> bool:
    """Whether losses are the same but for the order in which numbers were added."""
    pairs = zip(losses, others, strict=True)
    return all(abs(float.fromhex(a) - float.fromhex(b)) < 1e-3 * float.fromhex(b) for a, b in pairs)


def refused(command: str, *arguments: object) -> str:
    """What is said, in one line; it is an error, and no traceback."""
    result = run(command, *arguments)
    assert result.exit_code != 0
    return " ".join(f"{result.output} {result.exception}".split())
