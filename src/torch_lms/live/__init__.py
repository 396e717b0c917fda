"""Shows a session while it runs: beside its program (``shown``), or to another process (``Server``)."""

from torch_lms.live.client import readings_of
from torch_lms.live.monitor import shown
from torch_lms.live.reading import Pace, PageGroup, Reading, pace_between
from torch_lms.live.server import Server
from torch_lms.live.view import line, view
from torch_lms.live.wording import moved_and_held

__all__ = [
    "Pace",
    "PageGroup",
    "Reading",
    "Server",
    "line",
    "moved_and_held",
    "pace_between",
    "readings_of",
    "shown",
    "view",
]
