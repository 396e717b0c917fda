"""``torch-lms plan --validate``: memory and time measured on this machine, beside what was predicted."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from torch_lms.cli.plan_cases import MEMORY, TIME, TIME_ON_ACCELERATOR, Case
from torch_lms.errors import UsageError
from torch_lms.machine import Calibration, Machine
from torch_lms.planner import forecast
from torch_lms.targets import Setting, Target, find, trace
from torch_lms.trace import demand_curve
from torch_lms.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import torch
    from rich.console import Console

_WARM_UP = 3
_STEPS = 3
_OVERSUBSCRIPTION = 2
"""Planned steps run at the demand over this."""


@dataclass(frozen=True)
class Compared:
    """What was predicted of a case, and what was measured."""

    case: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The error of the prediction, relative to what was measured."""
        return self.predicted / self.measured - 1


@dataclass
class Validation:
    """All comparisons: bytes of memory, seconds of a step without LMS, seconds of a planned one.

    ``allocated_bytes``: the same predictions of memory, beside the peak of an accelerator's allocator without LMS.
    """

    demand_bytes: list[Compared] = field(default_factory=list)
    allocated_bytes: list[Compared] = field(default_factory=list)
    stock_s: list[Compared] = field(default_factory=list)
    planned_s: list[Compared] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """The comparisons as plain values, for programs."""
        return asdict(self)


def validate(console: "Console") -> Validation:
    """Predict, measure and print, case by case. Takes minutes."""
    import torch

    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    found = Validation()
    _show_title(console, "Memory: bytes that a step holds at once")
    for case in MEMORY:
        compared = Compared(str(case), _predicted_demand(case, device), _measured_demand(case, device))
        found.demand_bytes.append(compared)
        _show(console, compared, format_bytes)
    _show_errors(console, found.demand_bytes)
    if device.type != "cpu":
        _show_title(console, "Memory: the same predictions, and the peak of PyTorch's allocator without LMS")
        for case, of_demand in zip(MEMORY, found.demand_bytes, strict=True):
            compared = Compared(str(case), of_demand.predicted, _measured_allocated(case, device))
            found.allocated_bytes.append(compared)
            _show(console, compared, format_bytes)
        _show_errors(console, found.allocated_bytes)

    from torch_lms.runtime.calibrate import this_machine

    try:
        machine, calibration = this_machine()
    except UsageError as error:
        console.print(f"\nTime: omitted, {error}", markup=False, soft_wrap=True)
        return found
    _show_title(console, "Time: a step here, stock")
    found.stock_s = _compare_times(console, device, machine, calibration, oversubscription=None)
    _show_title(console, f"Time: a step here, planned, demand/{_OVERSUBSCRIPTION}")
    found.planned_s = _compare_times(console, device, machine, calibration, oversubscription=_OVERSUBSCRIPTION)
    return found


def _compare_times(
    console: "Console",
    device: "torch.device",
    machine: Machine,
    calibration: Calibration,
    *,
    oversubscription: int | None,
) -> list[Compared]:
    """Compare seconds of a step: without LMS, or planned at the demand over ``oversubscription``."""
    found = []
    for case in TIME if device.type == "cpu" else TIME_ON_ACCELERATOR:
        traced = trace(case.workload, find(case.workload), _as_traced(case, device))
        limit = None
        if oversubscription is not None:
            limit = demand_curve(traced.trace).demand_bytes // oversubscription
        policy = "none" if limit is None else "planned"
        predicted = forecast(traced.trace, machine, calibration, items=traced.items, policy=policy, limit=limit)
        if predicted.step_s is None:
            _show_cells(console, (str(case), "does not fit", "-", "-"))
            continue
        compared = Compared(str(case), predicted.step_s, _measured_s(case, device, limit))
        found.append(compared)
        _show(console, compared, format_seconds)
    _show_errors(console, found)
    return found


# -- tables ----------------------------------------------------------------------------------------------------------


def _show_title(console: "Console", title: str) -> None:
    headings = ("case", "predicted", "measured", "error")
    console.print(f"\n{title}\n", markup=False)
    _show_cells(console, headings)
    _show_cells(console, ["---"] * len(headings))


def _show(console: "Console", compared: Compared, shown: Callable[[float], str]) -> None:
    error = f"{100 * compared.error:+.1f} %"
    _show_cells(console, (compared.case, shown(compared.predicted), shown(compared.measured), error))


def _show_cells(console: "Console", cells: Iterable[str]) -> None:
    console.print(f"| {' | '.join(cells)} |", markup=False, soft_wrap=True)


def _show_errors(console: "Console", compared: Sequence[Compared]) -> None:
    if not compared:
        return
    errors = [abs(one.error) for one in compared]
    median_error = f"{100 * median(errors):.1f} %"
    worst_error = f"{100 * max(errors):.1f} %"
    console.print(f"\nerror: median {median_error}, worst {worst_error}, {len(errors)} cases", markup=False)


# -- predictions and measurements ------------------------------------------------------------------------------------


def _as_traced(case: Case, device: "torch.device") -> Setting:
    """The setting of ``case``, for a trace of the operations that PyTorch chooses on ``device``."""
    return replace(case.setting, device="cpu" if device.type == "cpu" else "cuda")


def _predicted_demand(case: Case, device: "torch.device") -> int:
    return demand_curve(trace(case.workload, find(case.workload), _as_traced(case, device)).trace).demand_bytes


def _measured_demand(case: Case, device: "torch.device") -> int:
    import torch_lms

    with torch_lms.session(limit="1TB", device=device) as lms:
        step = _new_step(find(case.workload), case.setting, device)
        for _ in range(2):  # the optimizer makes its state in the first
            step()
        return lms.stats().demand_bytes


def _measured_allocated(case: Case, device: "torch.device") -> int:
    import torch

    module = torch.get_device_module(device)
    before = module.memory_allocated()
    step = _new_step(find(case.workload), case.setting, device)
    step()
    module.reset_peak_memory_stats()
    step()
    return int(module.max_memory_allocated() - before)


def _measured_s(case: Case, device: "torch.device", limit: int | None) -> float:
    """The median seconds of a step, under LMS if there is a limit."""
    import torch_lms
    from torch_lms.runtime.calibrate import plans_at_once

    with plans_at_once(), nullcontext() if limit is None else torch_lms.session(limit=limit, device=device):
        step = _new_step(find(case.workload), case.setting, device)
        for _ in range(_WARM_UP):
            step()
        return median(_seconds(step, device) for _ in range(_STEPS))


def _seconds(step: Callable[[], None], device: "torch.device") -> float:
    _settle(device)
    began_s = time.perf_counter()
    step()
    _settle(device)
    return time.perf_counter() - began_s


def _settle(device: "torch.device") -> None:
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _new_step(target: Target, setting: Setting, device: "torch.device") -> Callable[[], None]:
    """Make the model of ``target`` on ``device``; what is returned runs a step of it."""
    import torch

    from torch_lms.capture.fake import new_optimizer

    torch.manual_seed(0)
    with torch.device(device):
        model, inputs, loss = target(size=setting.size, batch=setting.batch, **setting.options)
    if setting.is_inference:
        model.eval()

        def infer() -> None:
            with torch.no_grad():
                model(*inputs)

        return infer
    optimizer = new_optimizer(setting.optimizer or "sgd", list(model.parameters()), device.type)

    def train() -> None:
        loss(model(*inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train
