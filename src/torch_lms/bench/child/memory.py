"""Memory of this process: a smaller card, the most that was held, and running out of it."""

import resource
from contextlib import suppress
from pathlib import Path

import torch

from torch_lms.errors import DeviceFullError, StoreFullError, UsageError, WorkingSetError
from torch_lms.runtime.malloc import give_back_early
from torch_lms.units import format_bytes

_SIGNS = (
    "allocate memory",
    "not enough memory",
    "bad_alloc",
    "out of memory",
    "could not create a",
    "could not execute a",
)


class Card:
    """The device, or the smaller card that it is taken for.

    Args:
        device: of the trial.
        card_bytes: the memory of the smaller card; None: all that there is.

    Raises:
        UsageError: the device has less.
    """

    def __init__(self, device: torch.device, card_bytes: int | None) -> None:
        self._device = device
        self._card_bytes = card_bytes
        self._before_bytes = 0
        self._untouched_before_bytes = 0

    def insert(self) -> None:
        """From here on there is no more memory than the card has, beside what the process has now."""
        self._before_bytes = of_process("VmRSS")
        self._untouched_before_bytes = _untouched_bytes()
        if self._card_bytes is None:
            return
        if self._device.type == "cpu":
            # The kernel counts libraries and the stacks of threads, too: they have nothing to do with the training.
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (of_process("VmData") + self._card_bytes, hard))
            give_back_early()  # a card's allocator can use what was freed, in other sizes
            return
        module = torch.get_device_module(self._device)
        whole = module.mem_get_info(self._device)[1]
        if self._card_bytes > whole:
            raise UsageError(
                f"--as-card expects no more than the device has, {format_bytes(whole)}; "
                f"got {format_bytes(self._card_bytes)}"
            )
        module.set_per_process_memory_fraction(self._card_bytes / whole, self._device)

    def lift(self) -> None:
        """Have all memory again, so that what happened can be told."""
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))

    def reset_peaks(self) -> None:
        """Count the peaks anew."""
        if self._device.type == "cpu":
            with suppress(OSError):  # where that is not allowed, the peak is that of all steps
                Path("/proc/self/clear_refs").write_text("5")  # VmHWM becomes what is resident now
        else:
            torch.get_device_module(self._device).reset_peak_memory_stats(self._device)

    def peaks(self) -> dict[str, int]:
        """The most since ``reset_peaks``, in bytes."""
        rss = of_process("VmHWM")
        if self._device.type == "cpu":
            untouched = max(0, _untouched_bytes() - self._untouched_before_bytes)
            on_device = max(0, rss - self._before_bytes) + untouched
        else:
            on_device = torch.get_device_module(self._device).max_memory_allocated(self._device)
        return {"peak_device_bytes": on_device, "peak_rss_bytes": rss}


def _untouched_bytes() -> int:
    """What the kernel counts against a card though nothing was written there yet: stacks and heaps of threads."""
    return of_process("VmData") - of_process("VmRSS")


def of_process(field: str) -> int:
    """Bytes of a line of ``/proc/self/status``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise RuntimeError(f"/proc/self/status has no line {field}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error``, or what it comes from, is about memory: of the device, the host, or a tier below."""
    known = (MemoryError, torch.OutOfMemoryError, WorkingSetError, StoreFullError)
    if isinstance(error, known) or any(sign in str(error) for sign in _SIGNS):
        return True
    before = error.__context__
    return before is not None and isinstance(error, DeviceFullError) and is_out_of_memory(before)
