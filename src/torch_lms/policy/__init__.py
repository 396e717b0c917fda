"""Which page leaves when room is needed. One policy per file."""

from torch_lms.policy.base import Policy, View
from torch_lms.policy.reactive import Reactive

__all__ = ["Policy", "Reactive", "View"]
