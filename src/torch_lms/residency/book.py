"""The book of all pages of one device: their states, the bytes these cost, and which pages may be evicted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch_lms.errors import InvalidTransition, InvariantError
from torch_lms.residency.page import Page, PageId, Tier
from torch_lms.residency.state import IN_LOWER_TIER, ON_DEVICE, TRANSITIONS, State, Trigger


@dataclass(slots=True)
class Ledger:
    """Bytes by place, kept up with every transition.

    Attributes:
        device: occupied on the device by pages, those under way included.
        held: on the device, or on its way there, by pages that cannot leave now: pinned, or unpageable.
        live: of all living pages, wherever they are: what the device would hold without paging.
        host, disk: occupied in the lower tiers.
        file: of pages that are in the files from which they were loaded.
        peak_device, peak_live: the most ``device`` and ``live`` have been since they were last reset.
    """

    device: int = 0
    held: int = 0
    live: int = 0
    host: int = 0
    disk: int = 0
    file: int = 0
    peak_device: int = 0
    peak_live: int = 0

    def add(self, nbytes: int) -> None:
        """Count bytes on the device."""
        self.add_found(nbytes)
        self.note_peak_device()

    def add_found(self, nbytes: int) -> None:
        """The same of bytes that were there before, and were not counted: first somebody makes room for them."""
        self.device += nbytes
        self.live += nbytes
        if self.live > self.peak_live:
            self.peak_live = self.live

    def note_peak_device(self) -> None:
        """Room has been made for all that is on the device."""
        if self.device > self.peak_device:
            self.peak_device = self.device

    def note_peaks(self, live: int, device: int) -> None:
        """So much was alive at once, and on the device, while nobody counted here."""
        self.peak_live = max(self.peak_live, live)
        self.peak_device = max(self.peak_device, device)

    def remove(self, nbytes: int) -> None:
        """Undo ``add``; the peaks stay."""
        self.device -= nbytes
        self.live -= nbytes

    def below(self, tier: Tier) -> int:
        """Bytes in a lower tier."""
        if tier is Tier.HOST:
            return self.host
        return self.disk if tier is Tier.DISK else self.file


class Book:
    """All pages of one device. The only place where pages and ledger change.

    A candidate is a page that may be evicted now: it is on the device, pageable, and not pinned. A page becomes the
    youngest candidate whenever it becomes one, and whenever its state changes.

    Attributes:
        ledger: bytes by place.
        clean, evicting, dirty: the candidates by state, the oldest first (dirty ones are ``resident``).
        fetching: pages whose fetch has started and not finished.
        away: pages that are in a lower tier alone, in the order in which they left.
        moved: living pages whose state changed, or whether they may leave, or that were written, until somebody empties
            it.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.clean: dict[PageId, Page] = {}
        self.evicting: dict[PageId, Page] = {}
        self.dirty: dict[PageId, Page] = {}
        self.fetching: dict[PageId, Page] = {}
        self.away: dict[PageId, Page] = {}
        self.moved: set[PageId] = set()
        self._candidates = {State.CLEAN: self.clean, State.EVICTING: self.evicting, State.RESIDENT: self.dirty}
        self._unready = {State.FETCHING: self.fetching, State.EVICTED: self.away}
        self._pages: dict[PageId, Page] = {}

    def __getitem__(self, page_id: PageId) -> Page:
        return self._pages[page_id]

    def __contains__(self, page_id: PageId) -> bool:
        return page_id in self._pages

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[Page]:
        return iter(self._pages.values())

    def get(self, page_id: PageId) -> Page | None:
        """The page of that number, if it lives."""
        return self._pages.get(page_id)

    # -- pages and their states --------------------------------------------------------------------------------------

    def add(self, page_id: PageId, nbytes: int, unpageable: str = "", tick: int = 0, *, is_found: bool = False) -> Page:
        """A new page, resident, of ``nbytes`` bytes; ``page_id`` must never have been used. ``is_found``: see
        ``Ledger.add_found``.
        """
        page = Page(page_id, nbytes, unpageable, last_use=tick)
        self._pages[page_id] = page
        if not unpageable:
            self.dirty[page_id] = page
        else:
            self.moved.add(page_id)
            self.ledger.held += nbytes
        if is_found:
            self.ledger.add_found(nbytes)
        else:
            self.ledger.add(nbytes)
        return page

    def apply(self, page: Page, trigger: Trigger, tier: Tier | None = None) -> None:
        """Take ``page`` through ``trigger``; ``tier`` is where an eviction that starts goes, or a copy is found.

        Raises:
            InvalidTransition: its state does not allow it; nothing changed.
        """
        before = page.state
        state = TRANSITIONS.get((before, trigger))
        if state is None:
            legal = ", ".join(t.value for s, t in TRANSITIONS if s is before) or "nothing"
            raise InvalidTransition(
                f"{page.story}: '{trigger.value}' is not possible while '{before.value}' (possible: {legal})"
            )
        if tier is not None:
            page.tier = tier
        self._count(page, before, state)
        page.remember(trigger.value)
        page.state = state
        self.moved.add(page.id)
        if state not in IN_LOWER_TIER:
            page.tier = None
        if before in self._candidates:
            self._candidates[before].pop(page.id, None)
        elif before in self._unready:
            del self._unready[before][page.id]
        if state in self._unready:
            self._unready[state][page.id] = page
        elif state is State.DEAD:
            del self._pages[page.id]
            self.moved.discard(page.id)
        elif state in self._candidates and not page.pins and not page.unpageable:
            self._candidates[state][page.id] = page

    def assign(self, page: Page, state: State, tier: Tier | None, has_new_copy: bool) -> None:
        """``page`` was taken to ``state`` by whoever follows a plan, with a lower copy in ``tier`` if it has one."""
        self.withdraw(page)
        if page.state in self._unready:
            del self._unready[page.state][page.id]
        self._count(page, page.state, State.DROPPED)
        page.remember(f"to {state.value} by plan")
        page.state = state
        page.tier = tier
        page.has_new_copy = has_new_copy
        self._count(page, State.DROPPED, state)
        if state in self._unready:
            self._unready[state][page.id] = page
        self.offer(page)

    def resize(self, page: Page, nbytes: int) -> None:
        """The user resized a resident storage (one without a lower copy: a write discards that)."""
        if page.state is not State.RESIDENT:
            raise InvalidTransition(f"{page.story}: resized while '{page.state.value}'")
        self.ledger.add(nbytes - page.nbytes)
        if page.is_held:
            self.ledger.held += nbytes - page.nbytes
        page.nbytes = nbytes

    def make_unpageable(self, page: Page, reason: str) -> None:
        """``page`` stays on the device from now on, for ``reason`` unless it had one already."""
        self.withdraw(page)
        self.moved.add(page.id)
        if not page.is_held:
            self.ledger.held += page.nbytes
        page.unpageable = page.unpageable or reason

    def _count(self, page: Page, before: State, state: State) -> None:
        """``page`` goes from one state to the other: move its bytes in the ledger."""
        ledger = self.ledger
        device = ((state in ON_DEVICE) - (before in ON_DEVICE)) * page.nbytes
        lower = ((state in IN_LOWER_TIER) - (before in IN_LOWER_TIER)) * page.nbytes
        ledger.device += device
        if page.tier is Tier.HOST:
            ledger.host += lower
        elif page.tier is Tier.DISK:
            ledger.disk += lower
        elif page.tier is Tier.FILE:
            ledger.file += lower
        if state is State.DEAD:
            ledger.live -= page.nbytes
            if page.is_held:
                ledger.held -= page.nbytes
        if device > 0:
            ledger.note_peak_device()

    # -- pages in use ------------------------------------------------------------------------------------------------

    def pin(self, pages: Iterable[PageId]) -> list[Page]:
        """Keep ``pages`` from leaving, until as many calls of ``unpin``. Those that are away or under way."""
        unready = []
        for page_id in pages:
            page = self._pages[page_id]
            if not page.is_held:
                self.ledger.held += page.nbytes
            page.pins += 1
            self.moved.add(page_id)
            candidates = self._candidates.get(page.state)
            if candidates is not None:
                candidates.pop(page_id, None)
            if page.state is not State.RESIDENT and page.state is not State.CLEAN:
                unready.append(page)
        return unready

    def unpin(self, pages: Iterable[PageId], tick: int) -> None:
        """Undo one ``pin`` of ``pages``, which were in use until ``tick``. Those that died meanwhile are passed over:
        ``set_`` drops a storage that its operation pinned.
        """
        for page_id in pages:
            page = self._pages.get(page_id)
            if page is not None:
                page.pins -= 1
                page.last_use = tick
                if not page.pins:
                    self.moved.add(page_id)
                    self.offer(page)
                    if not page.unpageable:
                        self.ledger.held -= page.nbytes

    def write(self, pages: Iterable[PageId]) -> list[tuple[PageId, Tier]]:
        """``pages`` were written. The lower copies, of these pages, that are worth nothing now."""
        stale = []
        for page_id in pages:
            page = self._pages.get(page_id)
            if page is None:
                continue
            page.writes += 1
            self.moved.add(page_id)
            if page.state is State.CLEAN:  # if it has left meanwhile, that was after the write
                assert page.tier is not None
                stale.append((page_id, page.tier))
                self.apply(page, Trigger.WRITE)
        return stale

    def touch(self, uses: Iterable[tuple[PageId, int, int]], tick: int) -> None:
        """Pages were used so many ticks after ``tick``, and written so often; the one used last comes last."""
        for page_id, later, writes in uses:
            page = self._pages[page_id]
            page.last_use = tick + later
            page.writes += writes
            if self.is_candidate(page):
                self.withdraw(page)
                self.offer(page)

    # -- candidates --------------------------------------------------------------------------------------------------

    def offer(self, page: Page) -> None:
        """Make ``page`` the youngest candidate, if it may be evicted."""
        if not page.pins and not page.unpageable and page.state in self._candidates:
            self._candidates[page.state][page.id] = page

    def withdraw(self, page: Page) -> None:
        """Make ``page`` no candidate until it is offered again."""
        candidates = self._candidates.get(page.state)
        if candidates is not None:
            candidates.pop(page.id, None)

    def is_candidate(self, page: Page) -> bool:
        """Whether ``page`` may be evicted now."""
        candidates = self._candidates.get(page.state)
        return candidates is not None and page.id in candidates

    @property
    def has_candidates(self) -> bool:
        """Whether any page may be evicted now."""
        return bool(self.clean or self.evicting or self.dirty)

    # -- the ledger's peaks ------------------------------------------------------------------------------------------

    def take_peak_live(self) -> int:
        """The most bytes that were alive at once since this was last asked."""
        peak = self.ledger.peak_live
        self.ledger.peak_live = self.ledger.live
        return peak

    def reset_peak_device(self) -> None:
        """Start anew to look for the most bytes on the device."""
        self.ledger.peak_device = self.ledger.device

    # -- checks ------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            InvariantError: the first that does not hold.
        """
        for page in self:
            self._validate_page(page)
        self._validate_candidates()
        device = sum(p.nbytes for p in self if p.state.on_device)
        live = sum(p.nbytes for p in self)
        lower = {t: sum(p.nbytes for p in self if p.state.in_lower_tier and p.tier is t) for t in Tier}
        ledger = self.ledger
        held = sum(p.nbytes for p in self if p.is_held)
        told = ledger.device, ledger.held, ledger.live, {tier: ledger.below(tier) for tier in Tier}
        if told != (device, held, live, lower):
            raise InvariantError(f"the ledger says {ledger}, its pages {device=} {held=} {live=} {lower=}")

    def _validate_page(self, page: Page) -> None:
        if page.pins < 0:
            raise InvariantError(f"{page.story}: unpinned more often than pinned")
        if page.pins and page.state in (State.EVICTED, State.DROPPED):
            raise InvariantError(f"{page.story}: pinned, yet {page.state.value}")
        if page.unpageable and page.state is not State.RESIDENT:
            raise InvariantError(f"{page.story}: may not leave the device ({page.unpageable}), yet {page.state}")
        if (page.tier is None) == page.state.in_lower_tier:
            raise InvariantError(f"{page.story}: {page.state} in tier {page.tier}")

    def _validate_candidates(self) -> None:
        """Between two events every page that may be evicted is a candidate, and no other."""
        for page in self:
            may_be_evicted = not page.pins and not page.unpageable and page.state in self._candidates
            if self.is_candidate(page) != may_be_evicted:
                raise InvariantError(f"{page.story}: a candidate for eviction: {self.is_candidate(page)}")
            for state, unready in self._unready.items():
                if (page.id in unready) != (page.state is state):
                    raise InvariantError(f"{page.story}: taken to be '{state.value}': {page.id in unready}")
        for state, pages in self._candidates.items():
            for page in pages.values():
                if page.state is not state or page.id not in self._pages:
                    raise InvariantError(f"{page.story}: a candidate as if it were '{state.value}'")
