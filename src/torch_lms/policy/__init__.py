"""Which page leaves when room is needed. One policy per file."""

from torch_lms.policy.base import Policy, Prefetch, Recipe, View, inputs_first
from torch_lms.policy.passed import Birth, Counts, Lists, Moved, Passed
from torch_lms.policy.plan import Plan, Recomputation
from torch_lms.policy.planned import PlanCursor, Planned
from torch_lms.policy.reactive import Reactive
from torch_lms.policy.rejoining import Rejoining

__all__ = [
    "Birth",
    "Counts",
    "Lists",
    "Moved",
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
