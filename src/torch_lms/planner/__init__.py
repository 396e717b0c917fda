"""From a trace to a plan."""

from torch_lms.engine import Speeds
from torch_lms.planner.bound import bound_seconds
from torch_lms.planner.evictions import choose, moved_out
from torch_lms.planner.feasibility import MemoryBudget, Need, lower_tiers, may_fit, need_of, within
from torch_lms.planner.floor import floor_bytes, optimum_bytes
from torch_lms.planner.forecast import Forecast, forecast
from torch_lms.planner.gaps import Gap, gaps_of
from torch_lms.planner.host_part import NO_HOST_PART, HostPart
from torch_lms.planner.makers import plan_maker
from torch_lms.planner.pace import stock_step
from torch_lms.planner.paging import POLICIES, planned_with
from torch_lms.planner.plan import make_plan
from torch_lms.planner.recomputation import Producers
from torch_lms.planner.walk import Choice, Rules, Walker

__all__ = [
    "NO_HOST_PART",
    "POLICIES",
    "Choice",
    "Forecast",
    "Gap",
    "HostPart",
    "MemoryBudget",
    "Need",
    "Producers",
    "Rules",
    "Speeds",
    "Walker",
    "bound_seconds",
    "choose",
    "floor_bytes",
    "forecast",
    "gaps_of",
    "lower_tiers",
    "make_plan",
    "may_fit",
    "moved_out",
    "need_of",
    "optimum_bytes",
    "plan_maker",
    "planned_with",
    "stock_step",
    "within",
]
