"""What operations have to do, and the shares of the peaks that are found from how long they took."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lms.capture.schema import describe
from torch_lms.capture.work import work_of
from torch_lms.errors import UsageError
from torch_lms.machine import INTERPOSERS, NATIVE, PYTHON, Efficiency, default_host_costs, load
from torch_lms.runtime import calibrate
from torch_lms.runtime.calibrate import _host_costs, _interposer, _shares, plans_at_once
from torch_lms.trace import Work

ACCELERATOR = load("ac922-v100-16gb").accelerator
F = torch.nn.functional


class Works(TorchDispatchMode):
    """Of the operations that do something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Work] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        info = describe(func)
        if not (info.view or info.composite):
            self.found.append(work_of(info, func, args, kwargs or {}, result))
        return result


@pytest.mark.parametrize(
    ("pool", "dims", "window"),
    [
        (lambda x: F.max_pool2d(x, 3, 1, 1), 2, 9),
        (lambda x: F.max_pool2d(x, (3, 2)), 2, 6),
        (lambda x: F.avg_pool3d(x, 2), 3, 8),
        (lambda x: F.adaptive_avg_pool2d(x, 3), 2, 0),
        (lambda x: F.interpolate(x, scale_factor=2), 2, 0),
    ],
    ids=["square", "oblong", "volume", "adaptive", "up"],
)
def test_pooling_looks_at_each_place_of_a_window(pool: Any, dims: int, window: int) -> None:
    given = torch.randn(2, 3, *[8] * dims)
    with Works() as works:
        pooled = pool(given)
    assert [(work.kind, work.flops) for work in works.found] == [("pooling", window * pooled.numel())]


@pytest.mark.parametrize("true", [Efficiency(0.5, 0.25), Efficiency(0.02, 0.6), Efficiency(0.9, 0.05)])
def test_shares_are_found_of_operations_bound_by_either_or_by_both_alike(true: Efficiency) -> None:
    samples = []
    for flops_per_byte in (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0):
        nbytes = int(1e12 / (1 + flops_per_byte))
        work = Work("matrix", "float32", int(nbytes * flops_per_byte), nbytes)
        arithmetic_s = work.flops / (ACCELERATOR.fp32_flop_per_s * true.flops)
        samples.append((work, max(arithmetic_s, work.nbytes / (ACCELERATOR.memory_bytes_per_s * true.memory))))
    assert tuple(_shares(samples, ACCELERATOR)) == pytest.approx(tuple(true), rel=0.1)


def test_what_operations_do_not_tell_is_guessed() -> None:
    samples = [(Work("copy", "float32", 0, 10**9), 2 * 10**9 / ACCELERATOR.memory_bytes_per_s)]
    found = _shares(samples, ACCELERATOR)
    assert found.memory == pytest.approx(0.5, rel=1e-6)
    assert 0.3 < found.flops < 0.8


def test_operations_take_as_long_together_as_was_measured() -> None:
    work = Work("copy", "float32", 0, 10**9)
    samples = [(work, seconds) for seconds in (0.01, 0.01, 0.01, 0.03)]
    share = _shares(samples, ACCELERATOR).memory
    assert 4 * work.nbytes / (ACCELERATOR.memory_bytes_per_s * share) == pytest.approx(0.06)


def test_what_lms_costs_the_host_is_measured_for_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate, "_PAGED_STEPS", 8)
    found = _host_costs(torch.device("cpu"))
    assert set(found) == set(INTERPOSERS)
    python = found[PYTHON]
    assert python.is_available
    assert python.source.startswith("measured")
    assert 0 < python.op_s < 1e-3  # on any machine that is not a hundred times slower
    assert 0 <= python.short_op_s < 1e-3
    assert 0 <= python.action_s < 1e-2
    if not found[NATIVE].is_available:
        assert found[NATIVE] == replace(default_host_costs()[NATIVE], is_available=False)


def test_an_interposer_that_is_refused_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise UsageError("expected TORCH_LMS_INTERPOSER=python")

    monkeypatch.setattr("torch_lms.runtime.api.session", refuse)
    assert _interposer(torch.device("cpu")) is None
    found = _host_costs(torch.device("cpu"))
    assert not any(cost.is_available for cost in found.values())


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in ("auto", None):
        if before is None:
            monkeypatch.delenv("TORCH_LMS_INTERPOSER")
        else:
            monkeypatch.setenv("TORCH_LMS_INTERPOSER", before)
        with plans_at_once(NATIVE):
            assert os.environ["TORCH_LMS_INTERPOSER"] == NATIVE
        assert os.environ.get("TORCH_LMS_INTERPOSER") == before
