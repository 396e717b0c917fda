"""What was done and when, in a run and in a simulation."""

from torch_lms.timeline.copies import Copies
from torch_lms.timeline.link import Link
from torch_lms.timeline.lives import Lives
from torch_lms.timeline.record import Lane, Level, Life, Span, Timeline
from torch_lms.timeline.waits import with_pages_waited_for

__all__ = ["Copies", "Lane", "Level", "Life", "Link", "Lives", "Span", "Timeline", "with_pages_waited_for"]
