"""``torch-lms doctor``: what it finds here, what it measures, what it warns of."""

import contextlib
import dataclasses
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_lms.machine import HostMemory
from torch_lms.runtime import bandwidth
from torch_lms.runtime.advice import warnings_about
from torch_lms.runtime.bandwidth import Link, device_links, disk_links, memory_link
from torch_lms.runtime.probe import (
    Accelerator,
    ChosenLimit,
    Interposer,
    Machine,
    PageLocking,
    Processor,
    SpillDirectory,
    Versions,
    _has_gaps,
    probe,
)

GB = 10**9


def doctor(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch_lms", "doctor", *arguments]
    return subprocess.run(command, text=True, capture_output=True, timeout=120, **options)


def test_plain_text_when_nobody_watches(tmp_path: Path) -> None:
    shown = doctor("--quick", "--spill-dir", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    for expected in ("Versions", torch.__version__, "cores usable", "which binds", str(tmp_path), "direct I/O", "auto"):
        assert expected in shown.stdout
    assert "\x1b" not in shown.stdout


def test_json_alone_on_standard_output(tmp_path: Path) -> None:
    shown = doctor("--quick", "--json", "-", "--spill-dir", str(tmp_path))
    result = json.loads(shown.stdout)
    assert "Versions" in shown.stderr
    assert result["versions"]["torch"] == torch.__version__
    assert result["processor"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert result["spill"]["path"] == str(tmp_path)
    assert result["auto_limit"]["nbytes"] <= result["binding"]["free_bytes"] <= result["memory"]["available"]
    assert result["links"] == []


def test_links_are_measured(tmp_path: Path) -> None:
    target = tmp_path / "doctor.json"
    assert doctor("--json", str(target), "--spill-dir", str(tmp_path)).returncode == 0
    links = {link["name"]: link for link in json.loads(target.read_text())["links"]}
    assert links["memory copy"]["bytes_per_s"] > 10e6
    assert sum(name.startswith("disk") for name in links) >= 1
    assert os.listdir(tmp_path) == ["doctor.json"]


def test_low_rlimit_is_seen_and_warned_of(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2 * GB, 2 * GB))

    result = json.loads(doctor("--json", "-", "--spill-dir", str(tmp_path), preexec_fn=limit).stdout)
    assert result["binding"]["name"] == "RLIMIT_DATA"
    assert result["memory"]["rlimit_data"] == 2 * GB
    assert any("ulimit -d" in warning for warning in result["warnings"])


def test_spill_directory_that_cannot_be_used(tmp_path: Path) -> None:
    missing = doctor("--quick", "--spill-dir", str(tmp_path / "missing"))
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("torch-lms: error: spill directory")
    assert missing.stderr.count("\n") == 1


def test_disk_writes_no_more_than_a_quarter_of_what_is_free(tmp_path: Path) -> None:
    free = 100 << 20
    write, read = disk_links(tmp_path, free)
    assert (write.name, read.name) == ("disk write", "disk read")
    assert 0 < write.nbytes == read.nbytes <= free // 4
    assert write.bytes_per_s
    assert read.bytes_per_s
    assert os.listdir(tmp_path) == []


def test_disk_without_room_or_direct_io_gives_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (link,) = disk_links(tmp_path, 4096)
    assert (link.bytes_per_s, link.note) == (None, "no free space")
    buffered = bandwidth.DiskStore
    monkeypatch.setattr(bandwidth, "DiskStore", lambda directory: buffered(directory, direct=False))
    (link,) = disk_links(tmp_path, 1 << 30)
    assert link.bytes_per_s is None
    assert "page cache" in link.note


def test_slow_disk_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_DISK_PATIENCE_S", 0.0)
    write, read = disk_links(tmp_path, 1 << 30)
    assert write.nbytes == read.nbytes == 64 << 20


def test_memory_copy_keeps_to_the_room() -> None:
    link = memory_link(80 << 20)
    assert link.nbytes == 5 * (10 << 20)
    assert link.bytes_per_s


def test_refused_page_locking_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **options: object) -> torch.Tensor:
        if options.get("pin_memory"):
            raise RuntimeError("no more locked memory\nCUDA stack")
        return torch.empty(0)

    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda _: (1 << 20, 1 << 20))
    monkeypatch.setattr(torch, "ones", refuse)
    (link,) = device_links(torch.device("cpu"), 1 << 20)
    assert link == Link("device and host", None, 0, "no more locked memory")


def test_device_links_on_a_double(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, pin_memory=False, **options: made(*size, **options))
    monkeypatch.setattr(torch, "Stream", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda _: (40 << 20, 80 << 20))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: None)
    up, down, both = device_links(torch.device("cpu"), 1 << 30)
    assert [link.name for link in (up, down, both)] == ["host to device", "device to host", "both ways at once"]
    # an eighth of the device's free memory to a buffer, five times
    assert (up.nbytes, down.nbytes, both.nbytes) == (25 << 20, 25 << 20, 50 << 20)


@pytest.fixture
def machine() -> Machine:
    """Nothing to complain of."""
    return Machine(
        Versions("1", "2", "3", "Linux", None, None, None),
        Processor("a CPU", 8, 8, 8),
        (),
        HostMemory(64 * GB, 50 * GB, None, None, None, GB, None, GB, None, 0),
        PageLocking(None, None, 0.0, ""),
        SpillDirectory(Path("/scratch"), "ext4", 900 * GB, 500 * GB, direct=True),
        ChosenLimit("cpu", 47 * GB, "available RAM"),
        (Link("memory copy", 5e9, GB), Link("disk write", 1e9, GB), Link("disk read", 1e9, GB)),
        Interposer("native", "it was built"),
    )


def test_nothing_to_warn_of(machine: Machine) -> None:
    assert warnings_about(machine) == ()


@pytest.mark.parametrize(
    ("part", "change", "expected"),
    [
        ("spill", {"filesystem": "tmpfs"}, "is memory"),
        ("spill", {"direct": False}, "no direct I/O"),
        ("spill", {"free_bytes": GB}, "only 1 GB free"),
        ("memory", {"rlimit_data": 9 * GB}, "RLIMIT_DATA leaves 8 GB of 50 GB"),
        ("memory", {"cgroup_limit": 9 * GB, "cgroup_used": GB}, "give the container or job more memory"),
        ("memory", {"rlimit_as": 9 * GB}, "ulimit -v"),
        ("memory", {"commit_limit": 9 * GB}, "vm.overcommit_memory"),
        ("page_locking", {"locked_bytes": 0, "refusal": "no"}, "raise ulimit -l"),
        ("versions", {"nvidia_driver": "570.1"}, "install a CUDA build"),
    ],
)
def test_warnings(machine: Machine, part: str, change: dict[str, object], expected: str) -> None:
    changed = dataclasses.replace(machine, **{part: dataclasses.replace(getattr(machine, part), **change)})
    (warning,) = warnings_about(changed)
    assert expected in warning


def test_warns_of_a_slow_disk(machine: Machine) -> None:
    slow = dataclasses.replace(machine, links=(Link("disk write", 80e6, GB), Link("disk read", 1e9, GB)))
    (warning,) = warnings_about(slow)
    assert warning.startswith("disk write runs at 80 MB/s")


def test_warns_of_a_host_smaller_than_its_device(machine: Machine) -> None:
    large = dataclasses.replace(machine, accelerators=(Accelerator("cuda:0", "H200", 141 * GB, 140 * GB),))
    (warning,) = warnings_about(large)
    assert "go on to disk" in warning


def test_warns_of_an_allocator_that_leaves_gaps(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, settings, has_gaps in (
        ("PYTORCH_ALLOC_CONF", "", False),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64", False),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64, expandable_segments: False", True),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False", True),
        ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync", False),
    ):
        monkeypatch.setenv(name, settings)
        assert _has_gaps("cuda") is has_gaps
        monkeypatch.delenv(name)
    assert _has_gaps("xpu") is None
    card = Accelerator("cuda:0", "RTX", 24 * GB, 23 * GB, has_gaps=True)
    (warning,) = warnings_about(dataclasses.replace(machine, accelerators=(card,)))
    assert "expandable_segments:True" in warning


def test_probe_finds_this_machine(tmp_path: Path) -> None:
    found = probe(tmp_path, measure=False)
    assert found.links == ()
    assert found.spill.path == tmp_path
    assert found.processor.model
    assert found.versions.torch == torch.__version__
