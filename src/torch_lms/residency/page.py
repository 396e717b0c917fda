"""One page: a tensor storage, the unit that moves (see N1)."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from torch_lms.residency.state import State

PageId = int
"""Pages are numbered in the order in which they were first seen; a number is never used again (see N2)."""

_STORY_LENGTH = 12


class Tier(Enum):
    """Where evicted bytes can be."""

    HOST = "host"
    DISK = "disk"
    FILE = "file"
    """That the program loaded them from: they are read there, and never written."""


@dataclass(slots=True, eq=False)
class Page:
    """What is known of a page.

    Attributes:
        id: its number.
        nbytes: bytes of its storage.
        unpageable: why it must stay on the device, or "" if it may leave.
        state: see ``State``.
        tier: where the lower copy is; None without one.
        pins: how many running operations (or callers of ``pinned``) need it resident.
        last_use: tick of its last use.
        has_new_copy: whether its lower copy was made since it was last away.
        writes: how often it may have been written.

    ``Book`` alone changes a page.
    """

    id: PageId
    nbytes: int
    unpageable: str = ""
    state: State = State.RESIDENT
    tier: Tier | None = None
    pins: int = 0
    last_use: int = 0
    has_new_copy: bool = False
    writes: int = 0
    _story: deque[str] | None = field(default=None, repr=False)

    @property
    def is_held(self) -> bool:
        """Whether it cannot leave the device now."""
        return bool(self.pins or self.unpageable)

    def remember(self, what: str) -> None:
        """Add a line to the story that an error about this page tells."""
        if self._story is None:  # most pages are born and die, and nothing else
            self._story = deque(maxlen=_STORY_LENGTH)
        self._story.append(what)

    @property
    def story(self) -> str:
        """What happened to it lately."""
        past = ", ".join(self._story or ()) or "nothing yet"
        return f"page {self.id} of {self.nbytes} bytes (pins {self.pins}; so far: {past})"
