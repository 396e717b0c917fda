"""What the test accelerator can be told, for programs that run on real devices, too: those do as they like."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tests.accelerator import CAPACITY, NAME, device_module


def is_ours(device: torch.device) -> bool:
    """Whether it is the test accelerator."""
    return device.type == NAME


def schedule(device: torch.device, pace: str, seed: int = 0) -> None:
    """When streams do what they are asked."""
    if is_ours(device):
        device_module.schedule(pace, seed)


def set_poison_at_free(device: torch.device, is_on: bool) -> None:
    """Whether memory is poisoned when it is freed."""
    if is_ours(device):
        device_module.set_poison_at_free(is_on)


def watch_races(device: torch.device) -> None:
    """Look from now on for uses of the same memory that no wait puts in order."""
    if is_ours(device):
        device_module.watch_races(True)


def take_races(device: torch.device) -> list[str]:
    """Those that were found since this was last asked, or since they are looked for."""
    return device_module.take_races() if is_ours(device) else []


@contextmanager
def scarce(device: torch.device, nbytes: int | None) -> Iterator[None]:
    """Inside, the device has ``nbytes`` more than are allocated now; None leaves it as it is."""
    if nbytes is None or not is_ours(device):
        yield
        return
    device_module.empty_cache()
    device_module.set_capacity(device_module.memory_allocated() + nbytes)
    try:
        yield
    finally:
        device_module.set_capacity(CAPACITY)
