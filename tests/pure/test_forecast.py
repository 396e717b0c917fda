"""What a forecast adds for LMS's own work."""

from dataclasses import replace

import pytest
from made_traces import THERE_AND_BACK

from torch_lms.machine import KINDS, Calibration, Disk, Efficiency, Machine, load
from torch_lms.planner import Forecast, forecast
from torch_lms.trace import Trace, Work

GPU = load("ac922-v100-16gb")
CPU = replace(GPU, link=None, disk=Disk(1e15, 1e15, 1 << 50))
UNMEASURED = Calibration("", dict.fromkeys(KINDS, Efficiency(1.0, 1.0)), 0.1, "made up")
LAUNCHES = 3


def told(machine: Machine, op_s: float, policy: str = "planned", limit: int = 20, **paging: float) -> Forecast:
    """Of five operations, each of which takes ``op_s``, the two smaller ones after it and their launches included."""
    work = Work("copy", "float32", 0, int(op_s * GPU.accelerator.memory_bytes_per_s), launches=LAUNCHES)
    ops = (op._replace(work=work, is_repeatable=False) for op in THERE_AND_BACK.ops)
    trace = Trace(THERE_AND_BACK.pages, tuple(ops))
    calibration = replace(UNMEASURED, **paging)
    return forecast(trace, machine, calibration, items=1, policy=policy, limit=limit)


def test_a_processor_does_operations_and_python_in_turns() -> None:
    plain, paged = (told(CPU, 1.0, paging_op_s=seconds) for seconds in (0.0, 0.1))
    assert paged.step_s - plain.step_s == pytest.approx(0.1 * LAUNCHES * 5)
    assert paged.step_s_unlimited == plain.step_s_unlimited


@pytest.mark.parametrize(("op_s", "bound_s"), [(1.0, 5.0), (1e-3, 5 * LAUNCHES * 0.1)], ids=["ahead", "behind"])
def test_beside_a_device_python_counts_when_it_is_no_longer_ahead(op_s: float, bound_s: float) -> None:
    paged = told(GPU, op_s, paging_op_s=0.1)
    assert paged.step_s == pytest.approx(bound_s, rel=1e-3)
    assert paged.gpu_use == pytest.approx(5 * op_s / bound_s, rel=0.05)


def test_memory_that_was_given_back_has_to_be_given_anew() -> None:
    plain, paged = (told(CPU, 1.0, paging_byte_s=seconds) for seconds in (0.0, 0.01))
    assert plain.h2d_bytes > 0
    assert paged.step_s - plain.step_s == pytest.approx(0.01 * plain.h2d_bytes)


@pytest.mark.parametrize(("policy", "limit"), [("none", 20), ("planned", 40), ("swap-all", 20)])
def test_none_of_that_without_lms_or_while_all_fits(policy: str, limit: int) -> None:
    plain = told(CPU, 1.0, policy, limit)
    assert told(CPU, 1.0, policy, limit, paging_op_s=0.1, paging_byte_s=0.0) == plain
