"""Distributed training, with LMS on in each process. Each script is a command of its own: see its head."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["ddp", "fsdp2", "parallel", "pending", "lightning_fsdp2"])
def test_two_processes(script: str) -> None:
    if script == "lightning_fsdp2" and find_spec("lightning") is None:
        pytest.skip("Lightning is not installed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*command, "-m", f"tests.distributed.{script}"], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(", rank ") == 2
