"""The core: events in, actions out. No clock, no I/O, no threads, no torch."""

from torch_lms.pager.actions import (
    Action,
    Discard,
    Drop,
    FinishEvict,
    FinishFetch,
    Release,
    Remake,
    StartEvict,
    StartFetch,
)
from torch_lms.pager.counters import Counters
from torch_lms.pager.driver import drive
from torch_lms.pager.events import (
    Copied,
    Created,
    Died,
    Event,
    Exported,
    LimitChanged,
    OpBegins,
    OpEnds,
    Pinned,
    Reclaim,
    Resized,
    Restore,
    Spoiled,
    StepEnded,
    Unpinned,
)
from torch_lms.pager.pager import Pager

__all__ = [
    "Action",
    "Copied",
    "Counters",
    "Created",
    "Died",
    "Discard",
    "Drop",
    "Event",
    "Exported",
    "FinishEvict",
    "FinishFetch",
    "LimitChanged",
    "OpBegins",
    "OpEnds",
    "Pager",
    "Pinned",
    "Reclaim",
    "Release",
    "Remake",
    "Resized",
    "Restore",
    "Spoiled",
    "StartEvict",
    "StartFetch",
    "StepEnded",
    "Unpinned",
    "drive",
]
