"""What a machine has: its memory, tiers and links. No torch."""

from torch_lms.machine.memory import HostMemory, read_host_memory

__all__ = ["HostMemory", "read_host_memory"]
