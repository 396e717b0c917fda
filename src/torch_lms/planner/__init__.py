"""From a trace to a plan."""

from torch_lms.planner.evictions import choose, moved_out
from torch_lms.planner.floor import floor_bytes, optimum_bytes
from torch_lms.planner.gaps import Gap, gaps_of
from torch_lms.planner.plan import make_plan
from torch_lms.planner.remakes import Speeds, remake

__all__ = ["Gap", "Speeds", "choose", "floor_bytes", "gaps_of", "make_plan", "moved_out", "optimum_bytes", "remake"]
