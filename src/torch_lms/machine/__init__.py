"""What a machine has: its memory, tiers and links; and machines by name, to ask about. No torch."""

from torch_lms.machine.calibration import (
    AUTO,
    KINDS,
    Calibration,
    Efficiency,
    calibration_for,
    config_dir,
    default_host_costs,
    save_calibration,
)
from torch_lms.machine.catalogue import load, names, text_of
from torch_lms.machine.host_cost import INTERPOSERS, NATIVE, PYTHON, HostCost
from torch_lms.machine.memory import HostMemory, read_host_memory
from torch_lms.machine.model import Accelerator, Disk, Link, Machine, Switch

__all__ = [
    "AUTO",
    "INTERPOSERS",
    "KINDS",
    "NATIVE",
    "PYTHON",
    "Accelerator",
    "Calibration",
    "Disk",
    "Efficiency",
    "HostCost",
    "HostMemory",
    "Link",
    "Machine",
    "Switch",
    "calibration_for",
    "config_dir",
    "default_host_costs",
    "load",
    "names",
    "read_host_memory",
    "save_calibration",
    "text_of",
]
