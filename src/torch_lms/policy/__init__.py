"""Which page leaves when room is needed. One policy per file."""

from torch_lms.policy.base import Ahead, Policy, Recipe, View
from torch_lms.policy.plan import Guide, Plan, Remade
from torch_lms.policy.planned import Planned
from torch_lms.policy.reactive import Reactive

__all__ = ["Ahead", "Guide", "Plan", "Planned", "Policy", "Reactive", "Recipe", "Remade", "View"]
