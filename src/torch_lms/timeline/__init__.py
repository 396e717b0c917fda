"""What was done and when, in a run and in a simulation."""

from torch_lms.timeline.link import Link
from torch_lms.timeline.record import Lane, Level, Span, Timeline

__all__ = ["Lane", "Level", "Link", "Span", "Timeline"]
