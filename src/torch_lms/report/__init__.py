"""Reports of what was recorded, for people and their tools. Pure functions."""

from torch_lms.report.perfetto import perfetto

__all__ = ["perfetto"]
