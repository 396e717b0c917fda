"""A timeline in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Source: "Trace Event Format", Google, 2016: complete events (X), counters (C), names of threads (M); times in
microseconds. What the format has no place for, such as the lives of pages, stands under ``otherData``, which both leave
alone.
"""

from collections.abc import Mapping
from typing import Any

from torch_lms.timeline import Lane, Level, Life, Span, Timeline

FORMAT = "torch-lms timeline"
VERSION = 1

_PROCESS = 1
_LANES = {lane: number for number, lane in enumerate(Lane, start=1)}


def perfetto(timeline: Timeline, about: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``timeline`` as an object to be written as JSON: a thread for each lane, a counter for each tier.

    ``about`` is what else is known of the step (``TimelineFile.about``).
    """
    began_s = min([span.start_s for span in timeline.spans] + [level.at_s for level in timeline.levels], default=0.0)
    events = [_name("process_name", 0, "torch-lms")]
    events += [_name("thread_name", number, lane.value) for lane, number in _LANES.items()]
    events += [_complete(span, began_s) for span in timeline.spans]
    events += [_counter(level, began_s) for level in timeline.levels]
    lives = [_life(life, began_s) for life in timeline.lives]
    other = {"format": FORMAT, "version": VERSION, **(about or {}), "lives": lives}
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": other}


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": kind, "args": {"name": name}}


def _complete(span: Span, began_s: float) -> dict[str, Any]:
    event = {
        "ph": "X",
        "pid": _PROCESS,
        "tid": _LANES[span.lane],
        "name": span.name,
        "ts": (span.start_s - began_s) * 1e6,
        "dur": max(0.0, span.end_s - span.start_s) * 1e6,
    }
    args = {"page": span.page} if span.page >= 0 else {}
    if span.nbytes:
        args["bytes"] = span.nbytes
    return {**event, "args": args} if args else event


def _counter(level: Level, began_s: float) -> dict[str, Any]:
    bytes_in = {"resident": level.resident, "host": level.host, "disk": level.disk}
    return {"ph": "C", "pid": _PROCESS, "name": "bytes", "ts": (level.at_s - began_s) * 1e6, "args": bytes_in}


def _life(life: Life, began_s: float) -> dict[str, Any]:
    """Moments in microseconds, as those of events."""
    return {
        "page": life.page,
        "bytes": life.nbytes,
        "made_by": life.made_by,
        "born_at": life.born_at,
        "born": None if life.born_s is None else _us(life.born_s - began_s),
        "dead": None if life.dead_s is None else _us(life.dead_s - began_s),
        "uses": [_us(use_s - began_s) for use_s in life.uses_s],
    }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
