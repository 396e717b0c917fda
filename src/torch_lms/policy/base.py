"""What a policy sees, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch_lms.residency import Page, PageId


@dataclass(frozen=True, slots=True)
class View:
    """The pages that may leave now: resident, not pinned, pageable. Read only.

    Attributes:
        clean: those with a valid lower copy, least recently used first.
        dirty: the others, least recently used first.
        tick: now, counted in operations.
    """

    clean: Mapping[PageId, Page]
    dirty: Mapping[PageId, Page]
    tick: int


class Policy(ABC):
    """Chooses victims. Has no memory of its own but what it is shown."""

    name: str

    @abstractmethod
    def victims(self, view: View) -> Iterator[Page]:
        """All pages of ``view``, the first to leave first. The pager stops asking when there is room enough, and
        takes each page that left out of ``view`` before it asks for the next: iterate over copies. A page that is
        given twice is asked once.
        """
