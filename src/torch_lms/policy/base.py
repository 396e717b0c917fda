"""What a policy sees, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_lms.residency import Page, PageId


@dataclass(slots=True)
class View:
    """The pages that may be evicted now: resident, not pinned, pageable. Read only; it changes as the pages do.

    Attributes:
        clean: those with a valid lower copy, least recently used first.
        dirty: the others, least recently used first.
        tick: the time, counted in operations.
        evicting: those whose eviction has started already, in the order in which it did.
        away: pages that are in a lower tier alone, in the order in which they left.
        limit: bytes that pages may occupy.
        room: of these, left beside what the operation that begins creates and what it has to fetch. Negative if pages
            must leave for it.
        step_began: the tick before the first operation of this step.
        used: the pages of the operation that begins. Their ``last_use`` is the one before.
    """

    clean: Mapping[PageId, Page]
    dirty: Mapping[PageId, Page]
    tick: int
    evicting: Mapping[PageId, Page] = field(default_factory=dict)
    away: dict[PageId, Page] = field(default_factory=dict)
    limit: int = 0
    room: int = 0
    step_began: int = 0
    used: Sequence[Page] = ()

    def find(self, page: PageId) -> Page | None:
        """The page of that number, if it may be evicted now."""
        return self.clean.get(page) or self.evicting.get(page) or self.dirty.get(page)


class FirstUse(NamedTuple):
    """The first of a page among some operations.

    Attributes:
        tick: of the operation.
        last_use: the tick of the use before.
        nbytes: of the page.
    """

    tick: int
    last_use: int
    nbytes: int


class Recipe(NamedTuple):
    """How a page can be recomputed.

    Attributes:
        page: the page.
        inputs: pages that the recomputation reads, as they are now.
        extra_bytes: needed meanwhile, beside the inputs and the bytes of the page.
        ops: the operations of the step that compute it, by their position.
        number: among the recomputations of the plan that has it; -1 without one.
    """

    page: PageId
    inputs: tuple[PageId, ...]
    extra_bytes: int
    ops: tuple[int, ...] = ()
    number: int = -1


class Prefetch(NamedTuple):
    """What may start now, although nothing needs it yet.

    Attributes:
        evict: pages to be copied to a lower tier, and then freed.
        fetch: pages to be fetched while there is room, the first needed first.
        drop: pages to be freed without a copy.
        waits: whether to wait until those that are evicted have left.
    """

    evict: Sequence[PageId]
    fetch: Sequence[PageId]
    drop: Sequence[Recipe] = ()
    waits: bool = False


class Outlook(NamedTuple):
    """What is to move during the operations to come, so that nobody need be asked at each of them.

    Attributes:
        leaving: pages that are not in use, in the order in which to evict them.
        coming: pages to be fetched, the first needed first.
        reserve: bytes: for so much there shall be room, or pages that can leave without a wait.
        spared: bytes of room left for what the program creates: nothing is fetched into it.
    """

    leaving: Sequence[PageId]
    coming: Sequence[PageId]
    reserve: int
    spared: int


class Policy(ABC):
    """Chooses victims, and what may move before it must. Is told of nothing but what it is shown."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the policy in force."""

    @property
    def defers_trimming(self) -> bool:
        """Whether pages beyond the limit stay until the next operation makes room. Much of what exceeds the limit after
        an operation is about to die, or to be used. The next operation finds the room that it needs in any case.
        """
        return False

    @abstractmethod
    def victims(self, view: View) -> Iterator[Page]:
        """All pages of ``view``, in the order in which to evict them. The pager stops asking when there is room
        enough, and takes each victim out of ``view`` before it asks for the next: iterate over copies. A page that is
        given twice is asked once.
        """

    def prefetch(self, view: View) -> Prefetch | None:
        """What to start beside the operation that begins now; None for nothing."""
        return None

    def recipe(self, page: PageId) -> Recipe | None:
        """How to recompute ``page``, if it had better be dropped than evicted whenever it has to go."""
        return None

    def outlook(self, view: View) -> Outlook | None:
        """What the operations to come may go by; None if the policy has to be asked at each."""
        return None

    def went_on(self, view: View, uses: Iterable[FirstUse], ran_short: bool) -> None:
        """Operations went by an outlook.

        Args:
            view: of all pages, before these operations.
            uses: the first of each page that they used, in their order.
            ran_short: whether they needed room that there was not.
        """
        return


def inputs_first(page: PageId, missing_input: Callable[[PageId], PageId | None]) -> Iterator[list[PageId]]:
    """Order the recomputation of ``page``: whatever it needs that was dropped, too, comes before it.

    Yields the chain of pages that wait for each other. Its last page has all its inputs: the caller recomputes it
    before it asks for the next chain. Whoever follows a plan on paper and the pager both go by this order.

    Args:
        page: what is needed.
        missing_input: names an input of a page that has to be recomputed first; None if it has all.
    """
    chain = [page]
    while chain:
        missing = missing_input(chain[-1])
        if missing is not None:
            chain.append(missing)
            continue
        yield chain
        chain.pop()
