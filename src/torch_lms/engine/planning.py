"""Who makes plans, and when they are there. An engine asks for one and goes on."""

import time
from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple, Protocol

from torch_lms.policy import Plan
from torch_lms.residency import PageId
from torch_lms.trace import Trace

REPEAT_S = 1e-4
"""What a processor loses for each operation that is repeated on it: seconds. 60 microseconds were measured to record an
operation, and 40 to repeat it; a page that is recomputed costs as much as one operation more."""

NATIVE_REPEAT_S = 4e-6
"""The same where the native interposer does so."""


class Speeds(NamedTuple):
    """Speeds of the link to the next tier, and of the disk behind it.

    Attributes:
        d2h, h2d: bytes per second from the device, and to it.
        overlap_penalty: share of a transfer's time that the program loses though it does not wait, since the same
            cores do both.
        host_bytes: that the next tier holds, where there is a disk behind it. What finds no room goes there.
        disk_write, disk_read: bytes per second to that disk, and from it.
        repeat_s: seconds that the program loses for each operation that is repeated, beside what that takes: half of it
            when it is recorded.
        launch_s: seconds that a host which runs ahead of its device needs for each launch; 0 where the processor
            computes itself.
        action_s: seconds that such a host needs for each action by which a page moves, is dropped or recomputed.
    """

    d2h: float
    h2d: float
    overlap_penalty: float = 0.0
    host_bytes: float = inf
    disk_write: float = inf
    disk_read: float = inf
    repeat_s: float = 0.0
    launch_s: float = 0.0
    action_s: float = 0.0


MakePlan = Callable[[Trace, int, Mapping[PageId, int], Speeds], Plan]
"""Makes a plan for steps like a trace, under a limit, given the numbers of the pages that live on (``planner``)."""


class PlanOrder(NamedTuple):
    """What a plan is wanted for.

    Attributes:
        signature: of such steps.
        trace: one of them.
        limit: bytes that its pages may occupy on the device.
        ids: numbers of the pages that were alive at its end, by their id. Those that die until the plan is there are
            never asked for again, since ids are used once.
        speeds: of the link.
        is_first: whether ``trace`` is of a step without a plan, and a better plan is wanted once one has followed this.
    """

    signature: int
    trace: Trace
    limit: int
    ids: Mapping[PageId, int]
    speeds: Speeds
    is_first: bool = False


class MadePlan(NamedTuple):
    """What became of an order.

    Attributes:
        order: the order.
        plan: that was made; None if none could be.
        cpu_s: seconds of a processor that it took.
        start_s, end_s: from when to when it was made, by ``time.perf_counter``.
        failure: why there is no plan; "" if there is one.
    """

    order: PlanOrder
    plan: Plan | None
    cpu_s: float
    start_s: float
    end_s: float
    failure: str = ""


class Planner(Protocol):
    """Makes plans, one after the other.

    Attributes:
        has_made: whether ``take`` would give something.
        spares_program: whether the program goes on meanwhile.
        keeps_plans: whether what is made costs nothing in the next run.
        improves: whether plans depend on the times of operations. A step without a plan does not tell them well: the
            host is slower there, and operations seem to take as long. So a first plan is followed by a better one.
    """

    @property
    def has_made(self) -> bool: ...

    @property
    def spares_program(self) -> bool: ...

    @property
    def keeps_plans(self) -> bool: ...

    @property
    def improves(self) -> bool: ...

    def get_ready(self) -> None:
        """Something will be ordered soon."""

    def order(self, order: PlanOrder) -> None:
        """Begin to make a plan."""

    def take(self) -> list[MadePlan]:
        """What was made since this was last asked."""

    def wait(self) -> None:
        """Wait until all that was ordered has been made."""

    def close(self) -> None:
        """Make no more. What was begun is given up."""


class PlansAtOnce:
    """Makes each plan while the program waits: for the simulator, tests and measurements.

    Args:
        make_plan: makes a plan.
        make_first: makes the first; None if plans do not depend on the times of operations.
    """

    spares_program = False
    keeps_plans = False

    def __init__(self, make_plan: MakePlan, make_first: MakePlan | None = None) -> None:
        self.improves = make_first is not None
        self._make_plan = make_plan
        self._make_first = make_first or make_plan
        self._made: list[MadePlan] = []

    @property
    def has_made(self) -> bool:
        """See ``Planner``."""
        return bool(self._made)

    def get_ready(self) -> None:
        """See ``Planner``."""

    def order(self, order: PlanOrder) -> None:
        """See ``Planner``. What making it raises is raised here."""
        start_s, started_cpu_s = time.perf_counter(), time.process_time()
        make_plan = self._make_first if order.is_first else self._make_plan
        plan = make_plan(order.trace, order.limit, order.ids, order.speeds)
        cpu_s = time.process_time() - started_cpu_s
        self._made.append(MadePlan(order, plan, cpu_s, start_s, time.perf_counter()))

    def take(self) -> list[MadePlan]:
        """See ``Planner``."""
        made, self._made = self._made, []
        return made

    def wait(self) -> None:
        """See ``Planner``."""

    def close(self) -> None:
        """See ``Planner``."""
