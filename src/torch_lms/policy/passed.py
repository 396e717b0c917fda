"""What operations did that passed without a decision."""

from typing import NamedTuple

from torch_lms.policy.base import Recipe
from torch_lms.residency import PageId, State, Tier


class Birth(NamedTuple):
    """A page that was created, and lives.

    Attributes:
        page: its id.
        number: in the plan.
        nbytes: bytes of its storage.
        unpageable: why it must stay on the device, "" if it may leave.
    """

    page: PageId
    number: int
    nbytes: int
    unpageable: str


class Moved(NamedTuple):
    """What became of a page that was moved as the plan has it.

    Attributes:
        page: its id.
        state: where its bytes are now.
        tier: of its lower copy; None without one.
        has_new_copy: whether that was made since the page was last away.
        recipe: how it is recomputed; None unless it is dropped.
    """

    page: PageId
    state: State
    tier: Tier | None
    has_new_copy: bool
    recipe: Recipe | None


class Counts(NamedTuple):
    """How many pages were moved or recomputed, and from where operations had their room: as in ``pager.Counters``."""

    evictions: int
    evicted_bytes: int
    fetches: int
    fetched_bytes: int
    recomputes: int
    recomputed_bytes: int
    clean_drops: int
    room_from_one: int
    room_from_some: int
    room_from_all: int

    @property
    def rooms_made(self) -> int:
        """Operations, those that recompute included, for which pages had to leave."""
        return self.room_from_one + self.room_from_some + self.room_from_all


class Lists(NamedTuple):
    """What a plan still has to do: see ``PlanCursor``."""

    due: list[PageId]
    to_evict: list[PageId]
    to_fetch: list[PageId]
    to_drop: list[PageId]
    recipes: list[Recipe]


class Passed(NamedTuple):
    """Operations that followed a plan or an outlook, one after the other, since the last event.

    Attributes:
        tick: when they began, counted in operations.
        ops: how many.
        position: in the plan, of the last.
        created: how many pages that created.
        births: the pages that they created and that live, in the order of their births.
        bound: numbers in the plan of pages that had none.
        uses: pages that they used or created: how many operations after the last event, and how often they were
            written. The one used last comes last.
        deaths: pages that lived before, and died.
        peak_live, peak_device: the most bytes of pages that were alive, and on the device.
        moved: pages that live and were moved, in the order of their last moves.
        counts: of these moves.
        lists: what the plan still has to do.
    """

    tick: int
    ops: int
    position: int
    created: int
    births: list[Birth]
    bound: list[tuple[PageId, int]]
    uses: list[tuple[PageId, int, int]]
    deaths: list[PageId]
    peak_live: int
    peak_device: int
    moved: list[Moved]
    counts: Counts
    lists: Lists


class ByOutlook(NamedTuple):
    """What has to be told beside that of operations that went by an outlook.

    Attributes:
        ops: each one's name, the bytes that it was to create, and whether it could be repeated.
        first_uses: the pages that they used, each with the operation that did first, counted from the last event.
        made_bytes: that were created by operations for which pages moved.
    """

    ops: list[tuple[str, int, bool]]
    first_uses: list[tuple[PageId, int]]
    made_bytes: int
