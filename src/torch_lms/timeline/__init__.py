"""What was done and when: the record that runtime and simulator both write."""

from torch_lms.timeline.link import Link
from torch_lms.timeline.log import Log
from torch_lms.timeline.record import Lane, Level, Span, Timeline

__all__ = ["Lane", "Level", "Link", "Log", "Span", "Timeline"]
