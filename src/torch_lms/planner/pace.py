"""The pace of a step on a machine: what its kernels take, and what the host has to do for them."""

from dataclasses import dataclass

from torch_lms.machine import Calibration, HostCost, Machine
from torch_lms.sim import HostWork, PacedStep, paced, timed, timed_on_device
from torch_lms.trace import Trace


def kernels_of(trace: Trace, machine: Machine, calibration: Calibration) -> Trace:
    """``trace`` with the seconds of its kernels; on a machine that computes on the host, of its operations.

    Raises:
        UsageError: ``trace`` does not say what its operations have to do.
    """
    time_operations = timed if machine.link is None else timed_on_device
    return time_operations(trace, machine.accelerator, calibration)


@dataclass(frozen=True, slots=True)
class HostLoad:
    """What a host has to do for a step.

    Attributes:
        machine: where the step runs.
        cost: what LMS costs the host; None without LMS.
    """

    machine: Machine
    cost: HostCost | None

    @property
    def while_all_fits(self) -> HostWork:
        """The work while no page has to leave."""
        return self._work(0.0 if self.cost is None else self.cost.op_s)

    @property
    def while_room_is_short(self) -> HostWork:
        """The work while some have to."""
        if self.cost is None:
            return self.while_all_fits
        return self._work(self.cost.short_op_s, self.cost.action_s)

    def _work(self, op_s: float, action_s: float = 0.0) -> HostWork:
        if self.machine.link is None:  # what launching takes is part of the operations' seconds
            return HostWork(op_s=op_s, action_s=action_s)
        return HostWork(self.machine.accelerator.launch_s, op_s, action_s, is_ahead=True)


def stock_step(trace: Trace, machine: Machine, calibration: Calibration) -> PacedStep:
    """``trace`` as it runs without LMS, with memory enough. Errors as of ``kernels_of``."""
    return paced(kernels_of(trace, machine, calibration), HostLoad(machine, None).while_all_fits)
