"""Which processors are near a GPU, by what the kernel says."""

import os
from pathlib import Path
from typing import Any

import torch


def bind_near(device: torch.device, root: Path = Path("/")) -> str | None:
    """Let this process run only on processors of the GPU's socket; its memory then comes from there, too.

    Returns:
        What was done, for people; None if the device is no GPU, or the machine has one socket.
    """
    if device.type != "cuda":
        return None
    near = processors_near(_address(device), root)
    if near is None:
        return None
    node, processors = near
    allowed = processors & os.sched_getaffinity(0)
    if not allowed:
        return None
    os.sched_setaffinity(0, allowed)
    return f"{device} is at NUMA node {node}: bound to {len(allowed)} of its processors"


def processors_near(address: str, root: Path) -> tuple[int, set[int]] | None:
    """The NUMA node of the PCI device at ``address``, and its processors; None if the kernel knows of none."""
    try:
        node = int((root / "sys/bus/pci/devices" / address / "numa_node").read_text())
        listed = (root / f"sys/devices/system/node/node{node}/cpulist").read_text().strip()
    except (OSError, ValueError):
        return None
    return (node, _numbers(listed)) if node >= 0 and listed else None


def _address(device: torch.device) -> str:
    """As the kernel writes it: ``0000:3b:00.0``."""
    properties: Any = torch.cuda.get_device_properties(device)
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def _numbers(listed: str) -> set[int]:
    """``0-3,8`` is 0, 1, 2, 3 and 8."""
    ranges = (part.partition("-") for part in listed.split(","))
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}
