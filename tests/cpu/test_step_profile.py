"""``benchmarks/step_profile.py``: what it makes of a profiler's trace."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from step_profile import Sum, events_of, profile_of

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "step_profile.py"


def told(category: str, name: str, start_us: float, seconds_us: float, stream: int = 7) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "tid": 1,
        "ts": start_us,
        "dur": seconds_us,
        "args": {} if category.startswith("cuda") else {"stream": stream},
    }


def test_idle_time_and_what_the_host_did_in_it() -> None:
    """The stream with most kernels waits 30 us; for 20 of them the host is in the driver."""
    events = events_of(
        {
            "traceEvents": [
                {"ph": "M", "name": "process_name"},
                {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 0, "dur": 100},
                told("kernel", "mm", 60, 40),
                told("kernel", "add", 0, 10),
                told("kernel", "mm", 10, 20),
                told("kernel", "elsewhere", 0, 200, stream=9),
                told("gpu_memcpy", "Memcpy HtoD", 20, 50, stream=8),
                told("cuda_runtime", "cudaMalloc", 25, 20),
                told("cuda_driver", "cuMemMap", 55, 10),
            ]
        }
    )
    profile = profile_of(events)
    assert profile.span_s == pytest.approx(100e-6)
    assert profile.idle_s == pytest.approx(30e-6)
    assert profile.in_idle == pytest.approx({"cudaMalloc": 15e-6, "cuMemMap": 5e-6})
    assert profile.kernels["mm"] == pytest.approx(Sum(60e-6, 2))
    assert profile.copies == {"Memcpy HtoD": pytest.approx(Sum(50e-6, 1))}
    assert set(profile.calls) == {"cudaMalloc", "cuMemMap"}


def test_nothing_on_a_device() -> None:
    profile = profile_of([])
    assert (profile.span_s, profile.idle_s, profile.in_idle, profile.kernels) == (0, 0, {}, {})


def test_on_a_cpu(tmp_path: Path) -> None:
    target = tmp_path / "profile.json"
    asked = ("unet3d", "48", "--tiny", "--device", "cpu", "--card", "20MB", "--json", str(target))
    command = [sys.executable, str(SCRIPT), *asked]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert ran.returncode == 0, ran.stderr
    assert "steps followed a plan" in ran.stdout
    found = json.loads(target.read_text())
    for way in ("without LMS", "planned"):
        assert 0 < found[way]["host_s"] <= found[way]["step_s"]
