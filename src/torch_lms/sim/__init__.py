"""What a machine would do: the pager's decisions on a virtual clock. No torch."""

from torch_lms.sim.clocks import NO_WORK, Clocks, HostWork, PacedStep, paced
from torch_lms.sim.cost import timed, timed_on_device
from torch_lms.sim.lanes import LinkSpeeds
from torch_lms.sim.simulator import SimulatedStep, Simulator

__all__ = [
    "NO_WORK",
    "Clocks",
    "HostWork",
    "LinkSpeeds",
    "PacedStep",
    "SimulatedStep",
    "Simulator",
    "paced",
    "timed",
    "timed_on_device",
]
