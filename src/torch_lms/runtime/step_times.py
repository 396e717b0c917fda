"""How long the last steps took."""

import statistics
import time
from collections import deque
from itertools import pairwise

_MAX_STEPS = 32


class StepTimes:
    """Seconds from the end of a step to the end of the next."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=_MAX_STEPS + 1)

    def ended(self) -> None:
        """A step has ended now."""
        self._ends_s.append(time.perf_counter())

    def last_and_median_s(self) -> tuple[float | None, float | None]:
        """Of the last step, and the median of the last 32; None before two have ended. Any thread may ask."""
        steps_s = [later - earlier for earlier, later in pairwise(list(self._ends_s))]
        if not steps_s:
            return None, None
        return steps_s[-1], statistics.median(steps_s)
