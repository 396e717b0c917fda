"""What a pager has done so far."""

from dataclasses import dataclass

from torch_lms.policy import Counts


@dataclass(slots=True)
class Counters:
    """Cumulative since the last reset.

    Attributes:
        evictions, evicted_bytes: pages copied down, and their bytes.
        fetches, fetched_bytes: pages copied up, and their bytes.
        clean_drops: pages evicted without a copy, because a lower copy was still valid.
        recomputes, recomputed_bytes: pages recomputed, and their bytes.
        steps: step boundaries seen.
        demand_bytes: the most bytes alive at once in any whole step.
        room_from_free, room_from_one, room_from_some, room_from_all: operations whose room was there, or came from
            evicting one page, several, or every page that could be evicted.
    """

    evictions: int = 0
    evicted_bytes: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    clean_drops: int = 0
    recomputes: int = 0
    recomputed_bytes: int = 0
    steps: int = 0
    demand_bytes: int = 0
    room_from_free: int = 0
    room_from_one: int = 0
    room_from_some: int = 0
    room_from_all: int = 0

    def add(self, counts: Counts) -> None:
        """So much was done by whoever follows a plan."""
        for name, count in zip(counts._fields, counts, strict=True):
            setattr(self, name, getattr(self, name) + count)
