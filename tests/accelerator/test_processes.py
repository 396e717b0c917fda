"""Processes of their own on the test accelerator: ``torch-lms run``, and machines on which it cannot be built."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import accelerator

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

SCRIPT = """
import torch, torch_lms
tensors = [torch.full((1 << 20,), float(n), device="testacc") for n in range(8)]
for _ in range(3):
    for tensor in tensors:
        tensor.add_(1)
print([float(tensor[-1]) for tensor in tensors])
print(torch_lms.stats().evictions, torch_lms.stats().peak_resident_bytes)
"""


def ended(folder: Path, *command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    known = accelerator.autoloading() if environment is None else environment
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=known, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "script.py").write_text(SCRIPT)
    return "script.py"


@pytest.mark.parametrize("device", [(), ("--device", "testacc")])
def test_a_script_is_paged_there(device: tuple[str, ...], script: str, tmp_path: Path) -> None:
    done = ended(tmp_path, "-m", "torch_lms", "run", *device, "--limit", "12MiB", script)
    assert done.returncode == 0, done.stderr
    numbers, counted = done.stdout.splitlines()
    assert numbers == str([n + 3.0 for n in range(8)])
    evictions, peak = map(int, counted.split())
    assert evictions > 8
    assert peak <= 12 * MIB


def test_only_the_device_that_was_asked_for_is_paged(script: str, tmp_path: Path) -> None:
    done = ended(tmp_path, "-m", "torch_lms", "run", "--device", "cpu", "--limit", "12MiB", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "0 0"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("nonsense", "got 'nonsense'"),
        ("cuda", "no 'cuda' device (it has: cpu, testacc)"),
    ],
)
def test_a_device_that_is_not_there(device: str, message: str, script: str, tmp_path: Path) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("it is there")
    done = ended(tmp_path, "-m", "torch_lms", "run", "--device", device, script)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("torch-lms: error: ")
    assert message in done.stderr


# -- where it cannot be built ------------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing was built yet, and that has no compiler on its path."""
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "PATH": str(tmp_path / "bin"), "TORCH_EXTENSIONS_DIR": str(tmp_path / "built")}
    environment.pop("CXX", None)
    return environment


def write_command(name: str, text: str, folder: Path) -> None:
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bin" / name).chmod(0o755)


def skipped(environment: dict[str, str]) -> str:
    """What pytest says of a test that needs the device."""
    one = "tests/accelerator/test_device.py::test_two_devices"
    plain = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib -rs")
    done = ended(ROOT, "-m", "pytest", *plain, one, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
    return done.stdout


def test_without_a_compiler_its_tests_are_skipped(bare: dict[str, str]) -> None:
    assert "needs a C++ compiler and ninja: apt install g++, pip install ninja" in skipped(bare)


def test_with_a_compiler_that_is_too_old_its_tests_are_skipped(bare: dict[str, str], tmp_path: Path) -> None:
    import ninja

    write_command("ninja", f'exec "{Path(ninja.BIN_DIR) / "ninja"}" "$@"', tmp_path)
    complaint = "c++: error: unrecognized option '-std=c++20'"
    old = f'case "$*" in *-dump*|*--version*) echo 4.9.2;; *) echo "{complaint}" >&2; exit 1;; esac'
    for name in ("c++", "g++"):
        write_command(name, old, tmp_path)
    for name in ("sh", "which"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    found = skipped(bare)
    assert "the test accelerator could not be built" in found
    assert complaint in found


def test_a_program_is_told_why_it_was_not_loaded(bare: dict[str, str], tmp_path: Path) -> None:
    environment = {**accelerator.autoloading(), **{name: bare[name] for name in ("PATH", "TORCH_EXTENSIONS_DIR")}}
    done = ended(tmp_path, "-c", "import torch", environment=environment)
    assert done.returncode == 1
    assert "needs a C++ compiler" in done.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stderr
