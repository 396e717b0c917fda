"""The file of a step that ran: ``torch-lms run --timeline``."""

import platform
from collections.abc import Mapping
from typing import Any

from torch_lms.report.perfetto import perfetto
from torch_lms.report.timeline_file import plain_step
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds
from torch_lms.timeline import Timeline
from torch_lms.trace import Trace

_AMPLE = 1 << 50
"""Bytes of a lower tier of which nothing is known."""


def of_run(
    title: str,
    timeline: Timeline,
    trace: Trace | None,
    stats: Mapping[str, Any],
    device: str,
    overlap_penalty: float,
) -> dict[str, Any]:
    """The file of the last step of a session.

    Args:
        title: what ran.
        timeline: of the step.
        trace: of the same step; None if it was not recorded.
        stats: of the session, by name.
        device: the kind of device, as in "cpu".
        overlap_penalty: share of a copy's time that the program loses though it does not wait for it.
    """
    about: dict[str, Any] = {
        "what": "run",
        "title": title,
        "machine": platform.node(),
        "policy": timeline.policy,
        "interposer": stats["interposer"],
        "limit_bytes": stats["limit_bytes"],
    }
    link = _measured(stats["link_bytes_per_s"], device == "cpu", overlap_penalty)
    if trace is not None and link is not None:
        about |= plain_step(trace, link, {Tier.DISK if link.is_host_memory else Tier.HOST: _AMPLE})
    return perfetto(timeline, about)


def _measured(bytes_per_s: Mapping[str, float], is_host_memory: bool, overlap_penalty: float) -> LinkSpeeds | None:
    """The link as the session found it; None if a direction was never used."""
    out, back = bytes_per_s.get("out", 0.0), bytes_per_s.get("in", 0.0)
    if not out or not back:
        return None
    return LinkSpeeds(
        out, back, disk_write=out, disk_read=back, is_host_memory=is_host_memory, overlap_penalty=overlap_penalty
    )
