"""The book of all pages of one device: their states, and the bytes these cost."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch_lms.errors import InvalidTransition, InvariantError
from torch_lms.residency.page import Page, PageId, Tier
from torch_lms.residency.state import State, Trigger, after


@dataclass(slots=True)
class Ledger:
    """Bytes by place, kept up with every transition.

    Attributes:
        device: occupied on the device by pages, those under way included.
        live: of all living pages, wherever they are: what the device would hold without paging.
        host, disk: occupied in the lower tiers.
        peak_device, peak_live: the most ``device`` and ``live`` have been since they were last reset.
    """

    device: int = 0
    live: int = 0
    host: int = 0
    disk: int = 0
    peak_device: int = 0
    peak_live: int = 0

    def add(self, nbytes: int) -> None:
        """Bytes on the device that belong to no page yet."""
        self.device += nbytes
        self.live += nbytes
        if self.device > self.peak_device:
            self.peak_device = self.device
        if self.live > self.peak_live:
            self.peak_live = self.live

    def remove(self, nbytes: int) -> None:
        """Undo ``add``."""
        self.device -= nbytes
        self.live -= nbytes


class Book:
    """All pages of one device. The only place where states and ledger change."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._pages: dict[PageId, Page] = {}

    def __getitem__(self, page_id: PageId) -> Page:
        return self._pages[page_id]

    def __contains__(self, page_id: PageId) -> bool:
        return page_id in self._pages

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[Page]:
        return iter(self._pages.values())

    def add(self, page_id: PageId, nbytes: int, unpageable: str = "") -> Page:
        """A new page, resident, of ``nbytes`` bytes; ``page_id`` must never have been used."""
        page = Page(page_id, nbytes, unpageable)
        self._pages[page_id] = page
        self._count(page, device=nbytes, live=nbytes)
        return page

    def apply(self, page: Page, trigger: Trigger, tier: Tier | None = None) -> None:
        """Take ``page`` through ``trigger``; ``tier`` is where an eviction that starts goes.

        Raises:
            InvalidTransition: its state does not allow it; nothing changed.
        """
        before = page.state
        state = after(before, trigger, page.tell)
        if trigger is Trigger.START_EVICT:
            page.tier = tier
        device = (state.on_device - before.on_device) * page.nbytes
        lower = (state.in_lower_tier - before.in_lower_tier) * page.nbytes
        live = -page.nbytes if state is State.DEAD else 0
        if device or lower or live:
            self._count(page, device=device, lower=lower, live=live)
        if state is not before:
            page.remember(trigger.value)
            page.state = state
        if not state.in_lower_tier:
            page.tier = None
        if state is State.DEAD:
            del self._pages[page.id]

    def resize(self, page: Page, nbytes: int) -> None:
        """The user resized a resident storage (one without a lower copy: a write discards that)."""
        if page.state is not State.RESIDENT:
            raise InvalidTransition(f"{page.story}: resized while '{page.state.value}'")
        grown = nbytes - page.nbytes
        self._count(page, device=grown, live=grown)
        page.nbytes = nbytes

    def _count(self, page: Page, *, device: int = 0, lower: int = 0, live: int = 0) -> None:
        ledger = self.ledger
        ledger.device += device
        ledger.live += live
        if page.tier is Tier.HOST:
            ledger.host += lower
        elif page.tier is Tier.DISK:
            ledger.disk += lower
        if ledger.device > ledger.peak_device:
            ledger.peak_device = ledger.device
        if ledger.live > ledger.peak_live:
            ledger.peak_live = ledger.live

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            InvariantError: the first that does not hold.
        """
        device = sum(p.nbytes for p in self if p.state.on_device)
        live = sum(p.nbytes for p in self)
        host = sum(p.nbytes for p in self if p.state.in_lower_tier and p.tier is Tier.HOST)
        disk = sum(p.nbytes for p in self if p.state.in_lower_tier and p.tier is Tier.DISK)
        ledger = self.ledger
        if (device, live, host, disk) != (ledger.device, ledger.live, ledger.host, ledger.disk):
            raise InvariantError(f"the ledger says {ledger}, its pages device={device} live={live} {host=} {disk=}")
        for page in self:
            if page.pins < 0:
                raise InvariantError(f"{page.story}: unpinned more often than pinned")
            if page.pins and page.state in (State.EVICTED, State.DROPPED):
                raise InvariantError(f"{page.story}: pinned, yet {page.state.value}")
            if page.unpageable and page.state is not State.RESIDENT:
                raise InvariantError(f"{page.story}: may not leave the device ({page.unpageable}), yet {page.state}")
            if (page.tier is None) == page.state.in_lower_tier:
                raise InvariantError(f"{page.story}: {page.state} in tier {page.tier}")
