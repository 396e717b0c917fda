"""A timeline in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Source: "Trace Event Format", Google, 2016: complete events (X), counters (C), names of threads (M); times in
microseconds.
"""

from typing import Any

from torch_lms.timeline import Lane, Level, Span, Timeline

_PROCESS = 1
_LANES = {lane: number for number, lane in enumerate(Lane, start=1)}


def perfetto(timeline: Timeline) -> dict[str, Any]:
    """``timeline`` as an object to be written as JSON: a thread for each lane, a counter for each tier."""
    began_s = min([span.start_s for span in timeline.spans] + [level.at_s for level in timeline.levels], default=0.0)
    events = [_name("process_name", 0, "torch-lms")]
    events += [_name("thread_name", number, lane.value) for lane, number in _LANES.items()]
    events += [_complete(span, began_s) for span in timeline.spans]
    events += [_counter(level, began_s) for level in timeline.levels]
    return {"displayTimeUnit": "ms", "traceEvents": events}


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
    return {**event, "args": {**args, "bytes": span.nbytes}} if span.nbytes else event


def _counter(level: Level, began_s: float) -> dict[str, Any]:
    bytes_in = {"resident": level.resident, "host": level.host, "disk": level.disk}
    return {"ph": "C", "pid": _PROCESS, "name": "bytes", "ts": (level.at_s - began_s) * 1e6, "args": bytes_in}
