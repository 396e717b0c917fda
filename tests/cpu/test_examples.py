"""The examples run as they are, and those of several ranks give the same as without LMS."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def ran(*command: str) -> str:
    """What ``command`` printed; it ended well."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_LMS_PLANNING": "at-once"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["plain_pytorch", "hf_trainer", "compiled"])
def test_of_one_process(name: str) -> None:
    """Each asserts that it stayed under its limit."""
    if name == "hf_trainer" and not (find_spec("transformers") and find_spec("accelerate")):
        pytest.skip("transformers or accelerate is not installed")
    if name == "compiled" and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on the CPU")
    evicted = re.search(r"in (\d+) evictions", ran(str(EXAMPLES / f"{name}.py")))
    assert evicted is not None
    assert int(evicted[1]) > 0


def test_of_two_ranks(tmp_path: Path) -> None:
    script, launched = launch("ddp")
    expected = digests(ran("-m", "torch.distributed.run", *launched))
    found = digests(limited(tmp_path, script, 6, launched))
    assert len(found) == 2
    assert found == expected


def test_of_two_ranks_with_shards(tmp_path: Path) -> None:
    """That shards equal those without LMS, ``tests/distributed/fsdp2.py`` shows."""
    script, launched = launch("fsdp2")
    assert len(digests(limited(tmp_path, script, 10, launched))) == 2


def launch(name: str) -> tuple[Path, list[str]]:
    script = EXAMPLES / f"{name}.py"
    return script, ["--standalone", "--nproc-per-node", "2", str(script)]


def limited(folder: Path, script: Path, megabytes: int, launched: list[str]) -> str:
    """What it prints, started as its docstring says."""
    assert f"torch-lms run --limit {megabytes}MB --min-size 16KiB torchrun" in script.read_text()
    options = ["--limit", f"{megabytes}MB", "--min-size", "16KiB", "--stats", str(folder / "stats.json")]
    printed = ran("-m", "torch_lms", "run", *options, "-m", "torch.distributed.run", *launched)
    for rank in (0, 1):
        stats = json.loads((folder / f"stats.rank{rank}.json").read_text())
        assert stats["evictions"] > 0
        assert stats["peak_resident_bytes"] <= megabytes * 1_000_000
    return printed


def digests(printed: str) -> list[str]:
    return sorted(re.findall(r"rank \d: \w+ [0-9a-f]{16}", printed))
