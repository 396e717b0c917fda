"""Which page leaves when room is needed. One policy per file."""

from torch_lms.policy.base import FirstUse, Outlook, Policy, Prefetch, Recipe, View, inputs_first
from torch_lms.policy.passed import Birth, ByOutlook, Counts, Lists, Moved, Passed
from torch_lms.policy.plan import Plan, Recomputation
from torch_lms.policy.planned import PlanCursor, Planned
from torch_lms.policy.reactive import Reactive
from torch_lms.policy.rejoining import Rejoining

__all__ = [
    "Birth",
    "ByOutlook",
    "Counts",
    "FirstUse",
    "Lists",
    "Moved",
    "Outlook",
    "Passed",
    "Plan",
    "PlanCursor",
    "Planned",
    "Policy",
    "Prefetch",
    "Reactive",
    "Recipe",
    "Recomputation",
    "Rejoining",
    "View",
    "inputs_first",
]
