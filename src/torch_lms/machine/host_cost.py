"""What LMS itself costs the host that asks a device for its work."""

import math
from dataclasses import dataclass, replace

from torch_lms.errors import UsageError

NATIVE = "native"
PYTHON = "python"

INTERPOSERS = (NATIVE, PYTHON)
"""The ways in which LMS comes between PyTorch and its kernels, the faster first: in C++, and in a dispatch mode."""


@dataclass(frozen=True, slots=True)
class HostCost:
    """Seconds of the host's thread, with LMS interposed in one way.

    An operation is one that computes or copies. What views and the like cost is part of it.

    Attributes:
        op_s: LMS adds to an operation while every page fits.
        short_op_s: LMS adds to an operation while room is short, without the actions.
        action_s: an action takes, by which a page moves, is dropped or recomputed (see ``pager.Action``). To give up
            a lower copy is none.
        source: where the figures come from.
        launch_s: what stock PyTorch needs from one launch to the next on the host of which they are. None: they are
            of the host that is asked about.
        is_available: whether LMS can be interposed so there.
    """

    op_s: float
    short_op_s: float
    action_s: float
    source: str
    launch_s: float | None = None
    is_available: bool = True

    def __post_init__(self) -> None:
        costs = (self.op_s, self.short_op_s, self.action_s)
        if not all(0 <= cost < math.inf for cost in costs):
            raise UsageError(f"op_s, short_op_s and action_s must be numbers of at least 0; got {costs}")
        if self.launch_s is not None and not 0 < self.launch_s < math.inf:
            raise UsageError(f"launch_s must be a positive number; got {self.launch_s!r}")

    def on(self, launch_s: float) -> "HostCost":
        """The cost on a host that needs ``launch_s`` seconds from one launch to the next.

        What is known of another host is taken to last as many times longer as the launches do.
        """
        if self.launch_s is None:
            return self
        longer = launch_s / self.launch_s
        return replace(
            self,
            op_s=longer * self.op_s,
            short_op_s=longer * self.short_op_s,
            action_s=longer * self.action_s,
            launch_s=None,
        )
