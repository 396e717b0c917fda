"""The copies of the modelled machine: who moves what, from when to when."""

from dataclasses import dataclass
from math import inf

from torch_lms.residency import PageId, Tier
from torch_lms.timeline import Lane, Span

_OPPOSITE = {Lane.D2H: Lane.H2D, Lane.H2D: Lane.D2H}


@dataclass(frozen=True, slots=True)
class LinkSpeeds:
    """Bytes per second that one device gets, all others that are at work taken into account.

    Attributes:
        d2h: to host memory.
        h2d: from there.
        disk_write, disk_read: of its share of the disk.
        both: both directions together, while both are busy.
        latency_s: before the first byte of a copy arrives.
        is_host_memory: whether the device's memory is the host's, so that the next tier is the disk.
        overlap_penalty: share of a copy's time that the program loses though it does not wait, since the same cores do
            both.
    """

    d2h: float
    h2d: float
    disk_write: float
    disk_read: float
    both: float = inf
    latency_s: float = 0.0
    is_host_memory: bool = False
    overlap_penalty: float = 0.0


class Lanes:
    """First come, first served in each lane. Times are seconds of the virtual clock.

    Attributes:
        speeds: of the links.
        spans: copies so far, in the order in which they began.
        done_s: of each page whose copy has begun and was not taken note of, when it ends.
    """

    def __init__(self, speeds: LinkSpeeds) -> None:
        self.spans: list[Span] = []
        self.done_s: dict[PageId, float] = {}
        self.speeds = speeds
        self._free_s = dict.fromkeys(Lane, 0.0)

    def evict(self, page: PageId, nbytes: int, tier: Tier, now_s: float) -> float:
        """A copy down to ``tier`` may begin now. Returns when the bytes are in host memory."""
        speeds = self.speeds
        if speeds.is_host_memory:
            self.done_s[page] = self._occupy(Lane.D2H, "evict", page, nbytes, speeds.disk_write, now_s)
            return now_s
        in_host_s = self._occupy(Lane.D2H, "evict", page, nbytes, speeds.d2h, now_s)
        self.done_s[page] = in_host_s
        if tier is Tier.DISK:
            self.done_s[page] = self._occupy(Lane.DISK, "evict", page, nbytes, speeds.disk_write, in_host_s)
        return in_host_s

    def fetch(self, page: PageId, nbytes: int, tier: Tier, now_s: float, read_from_s: float) -> float:
        """A copy up from ``tier`` may begin now, and on the disk from ``read_from_s`` on.

        Returns:
            When the bytes are in host memory.
        """
        speeds = self.speeds
        if speeds.is_host_memory:
            in_host_s = self.done_s[page] = self._occupy(Lane.H2D, "fetch", page, nbytes, speeds.disk_read, now_s)
            return in_host_s
        in_host_s = now_s
        if tier is Tier.DISK:
            in_host_s = self._occupy(Lane.DISK, "fetch", page, nbytes, speeds.disk_read, read_from_s)
        self.done_s[page] = self._occupy(Lane.H2D, "fetch", page, nbytes, speeds.h2d, max(now_s, in_host_s))
        return in_host_s

    def landed(self, now_s: float) -> list[PageId]:
        """Pages whose copy has ended by now."""
        return [page for page, done_s in self.done_s.items() if done_s <= now_s]

    def _occupy(self, lane: Lane, name: str, page: PageId, nbytes: int, bytes_per_s: float, now_s: float) -> float:
        start_s = max(now_s, self._free_s[lane])
        if lane in _OPPOSITE and self._free_s[_OPPOSITE[lane]] > start_s:
            bytes_per_s = min(bytes_per_s, self.speeds.both / 2)
        end_s = start_s + self.speeds.latency_s + nbytes / bytes_per_s
        self._free_s[lane] = end_s
        self.spans.append(Span(lane, name, start_s, end_s, nbytes, page))
        return end_s
