"""What a machine has: its memory, tiers and links; and machines by name, to ask about. No torch."""

from torch_lms.machine.calibration import (
    KINDS,
    Calibration,
    Efficiency,
    calibration_for,
    config_dir,
    save_calibration,
)
from torch_lms.machine.catalogue import load, names, text_of
from torch_lms.machine.memory import HostMemory, read_host_memory
from torch_lms.machine.model import Accelerator, Disk, Link, Machine, Switch

__all__ = [
    "KINDS",
    "Accelerator",
    "Calibration",
    "Disk",
    "Efficiency",
    "HostMemory",
    "Link",
    "Machine",
    "Switch",
    "calibration_for",
    "config_dir",
    "load",
    "names",
    "read_host_memory",
    "save_calibration",
    "text_of",
]
