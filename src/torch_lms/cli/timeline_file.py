"""What a timeline's file says of its step beside when what happened: for ``torch-lms report``."""

import platform
from typing import TYPE_CHECKING, Any

from torch_lms.report import perfetto
from torch_lms.report.timeline_file import plain_step
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds

if TYPE_CHECKING:
    from torch_lms.answers import Answer
    from torch_lms.machine import Calibration, Machine
    from torch_lms.runtime.stats import Stats, Step

_AMPLE = 1 << 50
"""Bytes of a lower tier of which nothing is known."""


def of_run(title: str, step: "Step", stats: "Stats") -> dict[str, Any]:
    """The file of the last step of a session."""
    assert step.timeline is not None
    about: dict[str, Any] = {
        "what": "run",
        "title": title,
        "machine": platform.node(),
        "policy": stats.policy,
        "interposer": stats.interposer,
        "limit_bytes": stats.limit_bytes,
    }
    link = _measured(step.device, step.overlap_penalty, stats.link_bytes_per_s)
    if step.trace is not None and link is not None:
        tier = Tier.DISK if link.is_host_memory else Tier.HOST
        about |= plain_step(step.trace, link, {tier: _AMPLE})
    return perfetto(step.timeline, about)


def _measured(device: str, overlap_penalty: float, bytes_per_s: dict[str, float]) -> LinkSpeeds | None:
    """The link as the session found it; None if a direction was never used."""
    out, back = bytes_per_s.get("out", 0.0), bytes_per_s.get("in", 0.0)
    if not out or not back:
        return None
    return LinkSpeeds(
        out, back, disk_write=out, disk_read=back, is_host_memory=device == "cpu", overlap_penalty=overlap_penalty
    )


def of_answer(target: str, answer: "Answer", machine: "Machine", calibration: "Calibration") -> dict[str, Any]:
    """The file of a simulated step."""
    from torch_lms.planner import lower_tiers, stock_step, within

    found = answer.forecast
    assert found.timeline is not None
    split, _ = within(answer.traced.trace, found.limit_bytes)
    step = stock_step(split, machine, calibration).trace
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
