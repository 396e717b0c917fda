"""The part of a step that is the host's own: reading and augmenting data, and what a network computes there."""

import math
from dataclasses import dataclass

from torch_lms.errors import UsageError


@dataclass(frozen=True, slots=True)
class HostPart:
    """What the host does for a step beside launching it. By default nothing.

    Attributes:
        sample_s: seconds of one core that reading, decoding and augmenting a sample takes. Workers do it meanwhile:
            a step takes at least as long as they need for its samples.
        workers: how many cores do so, for all devices of the machine together.
        step_s: seconds of each step in which the device waits for what the host computes.
    """

    sample_s: float = 0.0
    workers: int = 1
    step_s: float = 0.0

    def __post_init__(self) -> None:
        seconds = (self.sample_s, self.step_s)
        if not all(0 <= value < math.inf for value in seconds):
            raise UsageError(f"the host's part must be seconds of at least 0; got {seconds}")
        if self.workers < 1:
            raise UsageError(f"workers must be a whole number of at least 1; got {self.workers}")

    def added_s(self, device_s: float, samples: float) -> float:
        """Seconds that the host's part adds to a step of which the device takes ``device_s``.

        Args:
            device_s: seconds.
            samples: of the step, on all devices together.
        """
        loading_s = samples * self.sample_s / self.workers
        return max(device_s + self.step_s, loading_s) - device_s


NO_HOST_PART = HostPart()
