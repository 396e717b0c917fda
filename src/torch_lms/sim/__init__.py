"""What a machine would do: the pager's decisions on a virtual clock. No torch."""

from torch_lms.sim.cost import timed
from torch_lms.sim.lanes import LinkSpeeds
from torch_lms.sim.simulator import SimulatedStep, Simulator

__all__ = ["LinkSpeeds", "SimulatedStep", "Simulator", "timed"]
