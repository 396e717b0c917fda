"""Shares of the peaks: as files, and as times."""

from dataclasses import replace
from pathlib import Path

import pytest

from torch_lms.errors import UsageError
from torch_lms.machine import (
    INTERPOSERS,
    KINDS,
    NATIVE,
    PYTHON,
    Calibration,
    Efficiency,
    HostCost,
    calibration_for,
    default_host_costs,
    load,
    save_calibration,
    text_of,
)
from torch_lms.sim import timed, timed_on_device
from torch_lms.sim.clocks import KERNEL_S
from torch_lms.sim.cost import peak, seconds, seconds_on_device
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


def test_what_lms_costs_the_host_is_kept_with_it() -> None:
    measured = HostCost(1.5e-6, 2.5e-5, 1e-4, "measured")
    missing = replace(default_host_costs()[NATIVE], is_available=False)
    own = replace(HALF, accelerator=V100.name, host_costs={NATIVE: missing, PYTHON: measured})
    save_calibration(own)
    found = calibration_for(V100)
    assert found == own
    assert found.host_cost(PYTHON) == measured
    assert found.interposer() == PYTHON
    assert found.interposer(NATIVE) == NATIVE


def test_a_file_of_before_takes_the_default_for_what_lms_costs_the_host() -> None:
    path = save_calibration(replace(HALF, accelerator=V100.name))
    path.write_text("paging_op_s = 8.6e-05\n" + path.read_text())
    found = calibration_for(V100)
    assert found.host_costs == {}
    assert {name: found.host_cost(name) for name in INTERPOSERS} == default_host_costs()


def test_by_default_the_native_interposer_is_there_and_takes_the_host_less() -> None:
    native, python = (calibration_for(A100).host_cost(name) for name in INTERPOSERS)
    assert calibration_for(A100).interposer() == NATIVE
    assert native.op_s < python.op_s
    assert native.short_op_s < python.short_op_s
    assert native.action_s <= python.action_s


def test_an_older_host_takes_as_many_times_longer_as_its_launches_do() -> None:
    """The defaults are of a host whose launches take 7 us, those of the V100's time take 10."""
    for known in default_host_costs().values():
        now, then = known.on(A100.launch_s), known.on(V100.launch_s)
        assert (now.op_s, now.short_op_s, now.action_s) == pytest.approx((known.op_s, known.short_op_s, known.action_s))
        assert then.op_s == pytest.approx(known.op_s * 10 / 7)
        assert then.short_op_s == pytest.approx(known.short_op_s * 10 / 7)
        assert then.action_s == pytest.approx(known.action_s * 10 / 7)
    measured = HostCost(1e-6, 2e-6, 3e-6, "measured")
    assert measured.on(V100.launch_s) == measured


@pytest.mark.parametrize("costs", [(-1e-6, 0.0, 0.0), (0.0, float("nan"), 0.0), (0.0, 0.0, float("inf"))])
def test_what_lms_costs_the_host_is_not_negative(costs: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError, match="op_s, short_op_s and action_s must be numbers of at least 0"):
        HostCost(*costs, "made up")


def test_interposers_are_known_by_name() -> None:
    with pytest.raises(UsageError, match="interposers are native, python; got rust"):
        replace(HALF, host_costs={"rust": HostCost(0.0, 0.0, 0.0, "made up")})


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


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work("elementwise", "float32", 0, 900 * 10**9, launches=3), 4.0 + 2 * KERNEL_S),
        (Work("matrix", "float32", 1, 1), KERNEL_S),
    ],
    ids=["memory", "small"],
)
def test_a_device_does_not_launch_its_kernels(work: Work, expected: float) -> None:
    assert seconds_on_device(work, V100, HALF) == pytest.approx(expected, rel=1e-12)
    assert expected < seconds(work, V100, HALF)


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
    for time_operations in (timed, timed_on_device):
        with pytest.raises(UsageError, match=r"expected a trace of torch_lms\.trace_step"):
            time_operations(recorded, V100, HALF)
