"""What is asked: one target, one setting, one policy, one limit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_lms.machine import AUTO
from torch_lms.planner import NO_HOST_PART, HostPart
from torch_lms.targets import Setting, Target, Traced, trace

CHECKPOINT = "checkpoint"
"""A policy that changes the step itself: blocks are checkpointed, and nothing moves."""


@dataclass(frozen=True)
class Question:
    """A question about one target.

    Attributes:
        name: the target's name.
        target: the target.
        setting: how its step is asked for.
        policy: one of the planner's, or ``CHECKPOINT``.
        limit: bytes, or None for what the device has.
        interposer: "native" or "python"; "auto" is the faster of those that the machine has.
        tune: tunables of the policy "tflms2", by their names.
        host_part: what the host does beside launching.
        exact: whether operations run in pieces only if these give the same bits.
    """

    name: str
    target: Target
    setting: Setting
    policy: str
    limit: int | None
    interposer: str = AUTO
    tune: Mapping[str, Any] = field(default_factory=dict)
    host_part: HostPart = NO_HOST_PART
    exact: bool = True

    @property
    def planners_policy(self) -> str:
        """The policy under which the planner simulates the step."""
        return "none" if self.policy == CHECKPOINT else self.policy

    def traced(self) -> Traced:
        """Trace the step. Errors as of ``targets.trace``."""
        return trace(self.name, self.target, self.setting)
