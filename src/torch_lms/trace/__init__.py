"""What one step did: its operations in order, and the pages that they used. Frozen, and can be saved."""

from torch_lms.trace.curve import Curve, demand_curve
from torch_lms.trace.file import lines, load, parse, save
from torch_lms.trace.record import CONVOLUTIONS, Trace, TracedOp, TracedPage, Work
from torch_lms.trace.recorder import Living, Recorder
from torch_lms.trace.summary import LargePage, Summary, summarize

__all__ = [
    "CONVOLUTIONS",
    "Curve",
    "LargePage",
    "Living",
    "Recorder",
    "Summary",
    "Trace",
    "TracedOp",
    "TracedPage",
    "Work",
    "demand_curve",
    "lines",
    "load",
    "parse",
    "save",
    "summarize",
]
