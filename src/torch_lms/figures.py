"""What callbacks of trainers do: turn LMS on, and tell of it."""

from typing import Any

import torch_lms


def turn_on(options: dict[str, Any]) -> None:
    """``torch_lms.enable``; without ``options`` a session that is on is taken as it is."""
    if options or not torch_lms.is_enabled():
        torch_lms.enable(**options)


class Figures:
    """What was moved since ``begin``, and how long the program waited for it."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._before = torch_lms.stats()

    def now(self) -> dict[str, float]:
        """``lms_evicted_gb`` and ``lms_fetched_gb`` (1e9 bytes that left the device, and came back), ``lms_waited_s``
        (seconds that the program waited for them), and ``lms_peak_gb``, the most that was ever on the device.
        """
        now, before = torch_lms.stats(), self._before
        return {
            "lms_evicted_gb": (now.evicted_bytes - before.evicted_bytes) / 1e9,
            "lms_fetched_gb": (now.fetched_bytes - before.fetched_bytes) / 1e9,
            "lms_waited_s": now.stall_s - before.stall_s,
            "lms_peak_gb": now.peak_resident_bytes / 1e9,
        }
