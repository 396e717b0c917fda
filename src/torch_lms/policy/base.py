"""What a policy sees, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_lms.residency import Page, PageId


@dataclass(frozen=True, slots=True)
class View:
    """The pages that may leave now: resident, not pinned, pageable. Read only.

    Attributes:
        clean: those with a valid lower copy, least recently used first.
        dirty: the others, least recently used first.
        tick: now, counted in operations.
        leaving: those being copied down already, in the order in which that began.
    """

    clean: Mapping[PageId, Page]
    dirty: Mapping[PageId, Page]
    tick: int
    leaving: Mapping[PageId, Page] = field(default_factory=dict)


class Recipe(NamedTuple):
    """How a page can be made again.

    Attributes:
        page: the page.
        inputs: pages that it takes, as they are now.
        extra_bytes: needed meanwhile, beside inputs and page.
        ops: which operations of the step make it, by their position.
    """

    page: PageId
    inputs: tuple[PageId, ...]
    extra_bytes: int
    ops: tuple[int, ...] = ()


class Ahead(NamedTuple):
    """What may begin now, although nothing needs it yet.

    Attributes:
        leaving: pages to be copied down and freed.
        coming: pages to be fetched while there is room, the first needed first.
        dropping: pages to be freed without a copy.
    """

    leaving: Sequence[PageId]
    coming: Sequence[PageId]
    dropping: Sequence[Recipe] = ()


class Policy(ABC):
    """Chooses victims. Has no memory of its own but what it is shown."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the policy in force."""

    @property
    def knows_better(self) -> bool:
        """Whether what exceeds the limit after an operation had better wait for the next one to make room: much of it
        is about to die, or to be used. The next operation finds the room that it needs in any case.
        """
        return False

    @abstractmethod
    def victims(self, view: View) -> Iterator[Page]:
        """All pages of ``view``, the first to leave first. The pager stops asking when there is room enough, and
        takes each page that left out of ``view`` before it asks for the next: iterate over copies. A page that is
        given twice is asked once.
        """

    def ahead(self, view: View) -> Ahead | None:
        """What to begin beside the operation that begins now; None if nothing."""
        return None

    def recipe(self, page: PageId) -> Recipe | None:
        """How ``page`` can be made again, if it had better leave without a copy whenever it has to."""
        return None
