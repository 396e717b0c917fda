"""The file of a simulated step: ``torch-lms plan --timeline``."""

from typing import TYPE_CHECKING, Any

from torch_lms.report import perfetto
from torch_lms.report.timeline_file import plain_step

if TYPE_CHECKING:
    from torch_lms.answers import Answer
    from torch_lms.machine import Calibration, Machine


def of_answer(
    target: str, answer: "Answer", machine: "Machine", calibration: "Calibration", exact: bool
) -> dict[str, Any]:
    """The file of a simulated step.

    Args:
        exact: whether pieces of its operations give the same bits.
    """
    from torch_lms.planner import MemoryBudget, lower_tiers, stock_step

    found, traced = answer.forecast, answer.traced
    assert found.timeline is not None
    budget = MemoryBudget.of(
        traced.trace,
        machine,
        found.limit_bytes,
        extra_bytes=traced.gradient_bytes if found.gpus > 1 else 0,
        exact=exact,
    )
    step = stock_step(budget.trace, machine, calibration).trace
    tiers, link = lower_tiers(machine, found.gpus)
    setting = answer.setting
    sizes = {"size": setting.size, "batch": setting.batch}
    title = ", ".join([target, *(f"{name} {value}" for name, value in sizes.items() if value is not None)])
    about = {
        "what": "plan",
        "title": title,
        "machine": f"{found.machine} x {found.gpus}" if found.gpus > 1 else found.machine,
        "policy": found.policy,
        "interposer": found.interposer,
        "limit_bytes": found.limit_bytes,
        "demand_bytes": found.demand_bytes,
        **plain_step(step, link, tiers),
    }
    return perfetto(found.timeline, about)
