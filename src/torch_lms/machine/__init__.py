"""What a machine has: its memory, tiers and links; and machines by name, to ask about. No torch."""

from torch_lms.machine.catalogue import load, names
from torch_lms.machine.memory import HostMemory, read_host_memory
from torch_lms.machine.model import Accelerator, Disk, Link, Machine, Switch

__all__ = ["Accelerator", "Disk", "HostMemory", "Link", "Machine", "Switch", "load", "names", "read_host_memory"]
