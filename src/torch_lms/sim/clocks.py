"""Two clocks: that of the host, which launches kernels, and that of the device, which runs them (N23)."""

from collections import deque
from dataclasses import dataclass

from torch_lms.trace import Trace, TracedOp

KERNEL_S = 2e-6
"""The least time that a kernel takes on a device by itself: an assumption (A10 in docs/machines.md)."""

_MAX_QUEUED = 1024
"""Kernels that may be launched and not have run; who launches more waits. CUDA's figure (S33 in docs/machines.md)."""

_AWAITED = frozenset(
    {
        *("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero", "aten::masked_select"),
        *("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"),
    }
)
"""Operations whose result the host reads, or whose shape it must know, before it goes on."""

_PASSES = 3
"""How often a step is repeated until it is taken to be like the next. The last counts."""


@dataclass(frozen=True, slots=True)
class HostWork:
    """What the host does, in seconds of its thread.

    Attributes:
        launch_s: stock PyTorch needs from one launch to the next.
        op_s: LMS adds to each operation.
        action_s: LMS needs for each action.
        is_ahead: whether the host runs ahead of a device. Else the operations are the host's own, their seconds say
            what launching them takes, and what LMS needs comes on top.
    """

    launch_s: float = 0.0
    op_s: float = 0.0
    action_s: float = 0.0
    is_ahead: bool = False


NO_WORK = HostWork()
"""Of a host that takes no time."""


class Clocks:
    """The clocks of a host and of its device, or one clock where they are the same.

    The device does nothing that the host has not asked for: its clock is never behind the host's. Times are seconds.

    Args:
        work: what the host does.

    Attributes:
        now_s: of the device, when it is through with all that it was asked for.
        is_ahead: whether the host runs ahead of it.
        host_wait_s: since ``begin_step``, in which the device had nothing to do, since the host was at work.
        host_work_s: since then, of the host's work.
    """

    def __init__(self, work: HostWork) -> None:
        self.now_s = 0.0
        self._host_s = 0.0
        self.is_ahead = work.is_ahead
        self._work = work
        self._queue: deque[tuple[int, float]] = deque()  # launches, and when the device is through with them
        self._queued = 0
        self.begin_step()

    def begin_step(self) -> None:
        """Start to sum up anew."""
        self.host_wait_s = 0.0
        self.host_work_s = 0.0

    @property
    def host_s(self) -> float:
        """The host's time. Where it is not ahead, there is one clock."""
        return self._host_s if self.is_ahead else self.now_s

    def run(self, op: TracedOp) -> None:
        """The host launches the kernels of ``op``, whose seconds are the device's. All but the first are small."""
        each_s = self._work.launch_s + self._work.op_s
        if not self.is_ahead:
            self._host_works(op.launches * each_s)
            self.now_s += op.seconds
            return
        self._host_works(each_s)
        through_s = self.now_s + op.seconds
        if op.launches > 1:
            rest_s = (op.launches - 1) * each_s
            self._host_s += rest_s
            self.host_work_s += rest_s
            # The last small kernel runs when the device is through with those before, and not before it is launched.
            last_s = self._host_s + KERNEL_S
            self.host_wait_s += max(0.0, last_s - through_s)
            through_s = max(through_s, last_s)
        self.now_s = through_s
        self._enqueue(op.launches)
        if op.name in _AWAITED:
            self._host_s = self.now_s

    def act(self) -> None:
        """The host sees to an action."""
        self._host_works(self._work.action_s)

    def pass_by(self, seconds: float) -> None:
        """The program's own cores do something else."""
        self.now_s += seconds

    def wait_until(self, then_s: float) -> float:
        """The device waits for a copy. Returns for how long."""
        waited_s = max(0.0, then_s - self.now_s)
        self.now_s += waited_s
        return waited_s

    def host_waits_until(self, then_s: float) -> float:
        """The host itself waits, and the device with it once it has nothing to do. Returns for how long that is."""
        self._host_s = max(self._host_s, then_s)
        return self.wait_until(then_s)

    def _host_works(self, seconds: float) -> None:
        if not seconds:
            return
        self.host_work_s += seconds
        if self.is_ahead:
            self._host_s += seconds
            waited_s = max(0.0, self._host_s - self.now_s)
        else:
            waited_s = seconds
        self.host_wait_s += waited_s
        self.now_s += waited_s

    def _enqueue(self, launches: int) -> None:
        self._queue.append((launches, self.now_s))
        self._queued += launches
        while self._queued > _MAX_QUEUED:
            first_launches, through_s = self._queue.popleft()
            self._queued -= first_launches
            self._host_s = max(self._host_s, through_s)


@dataclass(frozen=True, slots=True)
class PacedStep:
    """A step in which no page moves, one of many alike.

    Attributes:
        trace: its operations, with the seconds from the start of each to that of the next.
        host_wait_s: of these, the device had nothing to do, since the host was at work.
        host_work_s: of the host's work.
    """

    trace: Trace
    host_wait_s: float
    host_work_s: float


def paced(trace: Trace, work: HostWork) -> PacedStep:
    """The step that ``trace`` becomes where the host does ``work``. The seconds of ``trace`` are those of kernels."""
    clocks = Clocks(work)
    ops: list[TracedOp] = []
    for _ in range(_PASSES):
        clocks.begin_step()
        ops.clear()
        for op in trace.ops:
            began_s = clocks.now_s
            clocks.run(op)
            ops.append(op._replace(seconds=clocks.now_s - began_s))
    return PacedStep(Trace(trace.pages, tuple(ops)), clocks.host_wait_s, clocks.host_work_s)
