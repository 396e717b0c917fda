"""When the program's work is done: on a device with streams that is later than when the host asks for it."""

import time
from collections.abc import Callable
from typing import Any

from torch_lms.runtime.device import StreamDevice, StreamEvent

Mark = Any
"""A moment in the program's work, on the clock that made the mark."""

_NEAR_S = 10.0
"""Events tell how far apart they are in single precision."""


class Clock:
    """The host's own: what it asks for is done when it goes on."""

    mark: Callable[[], Mark] = staticmethod(time.perf_counter)
    """Now."""

    def when(self, mark: Mark) -> float:
        """Seconds of ``time.perf_counter``. Waits until then, where the host is ahead."""
        seconds: float = mark
        return seconds


class StreamClock(Clock):
    """Of a device: marks are events on the program's current stream.

    Args:
        device: the device.

    Attributes:
        near: a mark that is reached, and when that was.
    """

    def __init__(self, device: StreamDevice) -> None:
        self._device = device
        mark = self.mark()
        device.synchronize(mark)
        self.near = mark, time.perf_counter()

    def mark(self) -> StreamEvent:
        return self._device.record(self._device.current_stream())

    def when(self, mark: StreamEvent) -> float:
        if not self._device.reached(mark):
            self._device.synchronize(mark)
        near, near_s = self.near
        found_s = near_s + self._device.seconds_between(near, mark)
        if found_s > near_s + _NEAR_S:
            self.near = mark, found_s
        return found_s
