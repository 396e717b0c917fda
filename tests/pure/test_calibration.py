"""Shares of the peaks: as files, and as times."""

from dataclasses import replace
from pathlib import Path

import pytest

from torch_lms.errors import UsageError
from torch_lms.machine import KINDS, Calibration, Efficiency, calibration_for, load, save_calibration, text_of
from torch_lms.sim import timed
from torch_lms.sim.cost import peak, seconds
from torch_lms.trace import Trace, TracedOp, Work

V100 = load("ac922-v100-16gb").accelerator
A100 = load("a100-80gb-sxm").accelerator
HALF = Calibration("", dict.fromkeys(KINDS, Efficiency(0.5, 0.25)), 0.1, "made up")


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_the_default_is_for_all() -> None:
    assert calibration_for(V100) == calibration_for(A100)
    assert set(calibration_for(V100).efficiencies) == set(KINDS)


def test_ones_own_comes_first() -> None:
    own = replace(HALF, accelerator=V100.name, source='measured, "here"')
    path = save_calibration(own)
    assert path.name == "v100-sxm2-16-gb.toml"
    assert calibration_for(V100) == own
    assert calibration_for(A100) != own


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accelerator = 3", "expected a calibration as `torch-lms doctor --calibrate` writes it"),
        ("[[", "expected a calibration"),
        ('accelerator = ""\nerror = 0.1\nsource = ""\n[efficiencies.matrix]\nflops = 1\nmemory = 1', "missing: conv"),
    ],
)
def test_a_file_that_is_none(text: str, message: str) -> None:
    path = save_calibration(replace(HALF, accelerator=V100.name))
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as raised:
        calibration_for(V100)
    assert str(path) in str(raised.value)


def test_shares_are_positive() -> None:
    with pytest.raises(UsageError, match="copy: shares must be positive"):
        replace(HALF, efficiencies={**HALF.efficiencies, "copy": Efficiency(0.0, 1.0)})


def test_a_machine_as_a_file(tmp_path: Path) -> None:
    for name in ("xeon-8xv100-16gb", "gh200-96gb", "ac922-v100-32gb"):
        machine = load(name)
        path = tmp_path / f"{name}.toml"
        path.write_text(text_of(machine))
        assert load(path) == machine
        path.write_text(text_of(replace(machine, link=None, switch=None, disk=None)))
        assert load(path).link is None


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work("convolution", "float32", 157 * 10**11, 1), 2.0),
        (Work("elementwise", "float32", 0, 900 * 10**9), 4.0),
        (Work("matrix", "float16", 125 * 10**12, 1), 2.0),
        (Work("matrix", "float32", 1, 1), V100.launch_s),
        (Work("copy", "float32", 0, 1, launches=5), 5 * V100.launch_s),
    ],
    ids=["arithmetic", "memory", "tensor cores", "launch", "small ones"],
)
def test_the_slower_of_arithmetic_and_memory(work: Work, expected: float) -> None:
    assert seconds(work, V100, HALF) == pytest.approx(expected)


def test_kinds_of_numbers() -> None:
    assert peak(Work("convolution", "float32", 1, 1), A100) == A100.tf32_flop_per_s
    assert peak(Work("convolution3d", "float32", 1, 1), A100) == A100.tf32_flop_per_s
    assert peak(Work("matrix", "float32", 1, 1), A100) == A100.fp32_flop_per_s
    assert peak(Work("matrix", "bfloat16", 1, 1), A100) == A100.bf16_flop_per_s
    assert peak(Work("matrix", "bfloat16", 1, 1), V100) == V100.fp32_flop_per_s
    assert peak(Work("elementwise", "float16", 1, 1), A100) == A100.fp32_flop_per_s
    assert peak(Work("matrix", "float64", 1, 1), A100) == A100.fp64_flop_per_s


def test_a_recorded_step_has_times_of_its_own() -> None:
    recorded = Trace((), (TracedOp("aten::mm", (), (), (), 0, 1.0),))
    with pytest.raises(UsageError, match=r"expected a trace of torch_lms\.trace_step"):
        timed(recorded, V100, HALF)
