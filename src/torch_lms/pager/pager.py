"""The pager of one device."""

from collections.abc import Callable, Iterable, Mapping

from torch_lms.pager.actions import Action, Actions, Discard
from torch_lms.pager.counters import Counters
from torch_lms.pager.eviction import Eviction
from torch_lms.pager.transfers import Attempt, Transfers
from torch_lms.policy import FirstUse, Outlook, Passed, Policy, Prefetch, Recipe, View, inputs_first
from torch_lms.residency import UNDER_WAY, Book, Page, PageId, State, Tier, Trigger


class Pager:
    """Decides what leaves the device and what comes back. No clock, no I/O, no threads, no torch.

    It is told of events, one method each. A method returns the actions that the event calls for: an empty or short
    tuple if no page moves, else a generator that yields one action after the other and is sent the outcome of each
    (``engine.drive`` does that). Driving it raises

    - StoreFullError: room is needed, and no lower tier can take a page;
    - whatever kept a needed page from coming back, as the outcome said it.

    Not thread-safe: one event at a time, each driven to its end.

    Args:
        limit: bytes of device memory that pages may occupy. Soft for the pages of the operation that runs.
        policy: chooses victims.
        tiers: the lower tiers, nearest first, and the most bytes of each.

    Attributes:
        book: all pages and their states.
        counters: what was done since ``reset_counters``.
        recipes: how to recompute the dropped pages. While there are any, ``op_begins`` must list what it writes.
        view: what the policy may choose from now.
        step_demand_bytes: the most bytes alive at once in the last whole step.
    """

    def __init__(self, limit: int, policy: Policy, tiers: Mapping[Tier, int]) -> None:
        self.limit = limit
        self.policy = policy
        self.book = Book()
        self.view = View(self.book.clean, self.book.dirty, 0, self.book.evicting, self.book.away)
        self.step_demand_bytes = 0
        self._transfers = Transfers(self.book, tiers)
        self.counters = self._transfers.counters
        self.recipes = self._transfers.recipes
        self._eviction = Eviction(self.book, self._transfers, policy, self.view)

    @property
    def room(self) -> int:
        """Bytes left under the limit; negative while an operation's own pages exceed it."""
        return self.limit - self.book.ledger.device

    @property
    def tiers(self) -> Mapping[Tier, int]:
        """The lower tiers, nearest first, and the most bytes of each."""
        return self._transfers.tiers

    @property
    def has_transfers(self) -> bool:
        """Whether transfers are in flight that nobody waits for: ``transfers_done`` may have something to say."""
        return bool(self.book.evicting or self.book.fetching)

    @property
    def has_refused(self) -> bool:
        """Whether a tier could not take a page in this step."""
        return bool(self._transfers.refused)

    def reset_counters(self) -> None:
        """Start counting anew."""
        self.counters = self._transfers.counters = Counters(demand_bytes=self.step_demand_bytes)

    def validate(self) -> None:
        """Check all invariants.

        Raises:
            InvariantError: the first that does not hold.
        """
        self.book.validate()
        self.recipes.validate(self.book)

    # -- events ------------------------------------------------------------------------------------------------------

    def op_begins(self, pages: tuple[PageId, ...], new_bytes: int, writes: tuple[PageId, ...] = ()) -> Iterable[Action]:
        """An operation is about to run: ``pages`` must be resident, and it will create ``new_bytes``. It may write
        ``writes``; they count only while there are ``recipes``.
        """
        view = self.view
        view.tick += 1
        view.used = [self.book[page_id] for page_id in pages]
        missing_bytes = sum(page.nbytes for page in view.used if page.state is State.EVICTED)
        view.limit, view.room = self.limit, self.room - new_bytes - missing_bytes
        return self._hold(pages, new_bytes, self.policy.prefetch(view), writes)

    def op_ends(self, pages: tuple[PageId, ...], written: tuple[PageId, ...]) -> Iterable[Action]:
        """The operation of ``pages`` ended, or failed; it wrote ``written``."""
        stale = self.book.write(written)
        self.book.unpin(pages, self.view.tick)
        if self.policy.defers_trimming:
            return self._transfers.discard(stale) if stale else ()
        return self._settle(stale)

    def created(self, page_id: PageId, nbytes: int, unpageable: str = "", *, is_found: bool = False) -> None:
        """There is a new page, resident. ``unpageable`` says why it must stay on the device, "" if it may leave. It
        ``is_found`` if its memory was there before: room is made for it once it is used. This calls for no action.
        """
        self.book.add(page_id, nbytes, unpageable, self.view.tick, is_found=is_found)

    def found_in_file(self, page_id: PageId) -> None:
        """The page was loaded from a file, and is in it as it is. This calls for no action."""
        self.book.apply(self.book[page_id], Trigger.FIND_COPY, Tier.FILE)

    def files_forgotten(self) -> Iterable[Action]:
        """Pages may be written unseen from now on: none is taken to be as in its file any more."""
        return self._forget_files() if self.book.ledger.file else ()

    def _forget_files(self) -> Actions:
        for page_id in [page.id for page in self.book if page.tier is Tier.FILE]:
            for page, tier in self.book.write([page_id]):
                yield Discard(page, tier)  # an interrupt here leaves the others as they are

    def died(self, page_id: PageId) -> Iterable[Action]:
        """The storage of the page is gone."""
        page = self.book[page_id]
        if page.state in UNDER_WAY:
            # Its storage died before its copy began, or the backend would have held it: there is nothing to wait for.
            return self._die_after_copy(page)
        return self._die(page)

    def outlook(self) -> Outlook | None:
        """What the operations to come may go by, if they create no more than is said beforehand; None if this has to
        be told of each.
        """
        if self.recipes or self.has_refused:
            return None
        self.view.limit, self.view.room = self.limit, self.room
        return self.policy.outlook(self.view)

    def went_on(self, passed: Passed, first_uses: Iterable[tuple[PageId, int]]) -> Iterable[Action]:
        """Operations went by the outlook. See ``ByOutlook``."""
        book, tick = self.book, passed.tick
        pages = [(tick + later, book[page_id]) for page_id, later in first_uses if page_id in book]
        uses = [FirstUse(used_at, page.last_use, page.nbytes) for used_at, page in pages]
        self.policy.went_on(self.view, uses, ran_short=passed.counts.rooms_made > 0)
        return self.passed(passed)

    def passed(self, passed: Passed) -> Iterable[Action]:
        """Operations passed, and nothing had to be decided for them but what the plan or the outlook says."""
        book, ledger, tick = self.book, self.book.ledger, passed.tick
        peaks = ledger.peak_live, ledger.peak_device
        self.view.tick = tick + passed.ops
        self.counters.add(passed.counts)
        self.counters.room_from_free += passed.ops + passed.counts.recomputes - passed.counts.rooms_made
        actions: list[Action] = []
        for page_id in passed.deaths:
            page = book[page_id]
            if page.state in UNDER_WAY:  # so it was when it was last heard of: nobody copies what is dead
                book.assign(page, State.CLEAN, page.tier, page.has_new_copy)
            actions += self._die(page)
        for birth in passed.births:
            book.add(birth.page, birth.nbytes, birth.unpageable, tick)
        for moved in passed.moved:
            page = book[moved.page]
            if page.state is State.DROPPED:
                self.recipes.remove(page.id)
            if moved.recipe is not None:
                self.recipes.add(moved.recipe)
            book.assign(page, moved.state, moved.tier, moved.has_new_copy)
        book.touch(passed.uses, tick)
        ledger.peak_live, ledger.peak_device = peaks  # whoever told of all this has watched them
        ledger.note_peaks(passed.peak_live, passed.peak_device)
        return tuple(actions)

    def transfers_done(self, pages: Iterable[PageId]) -> Actions:
        """The copies of ``pages`` that were in flight have ended."""
        return self._transfers.settle([self.book[page_id] for page_id in pages])

    def exported(self, pages: tuple[PageId, ...], reason: str) -> Iterable[Action]:
        """The address of ``pages`` escaped: they stay on the device for good, for ``reason``."""
        if all(self.book[page_id].state is State.RESIDENT for page_id in pages) and not self.recipes.dependents(pages):
            self.book.write(pages)
            self._make_unpageable(pages, reason)
            return ()
        return self._export(pages, reason)

    def _export(self, pages: tuple[PageId, ...], reason: str) -> Actions:
        unready = self.book.pin(pages)
        try:
            yield from self._make_ready(unready, 0, None, pages)
            yield from self._transfers.discard(self.book.write(pages))
        finally:
            self.book.unpin(pages, self.view.tick)
        self._make_unpageable(pages, reason)

    def _make_unpageable(self, pages: tuple[PageId, ...], reason: str) -> None:
        for page_id in pages:
            self.book.make_unpageable(self.book[page_id], reason)

    def resized(self, page_id: PageId, nbytes: int) -> Iterable[Action]:
        """The user resized the storage of the page."""
        stale = self.book.write((page_id,))
        self.book.resize(self.book[page_id], nbytes)
        return self._settle(stale)

    def invalidated(self, pages: tuple[PageId, ...]) -> Iterable[Action]:
        """``pages`` are about to lose their content and memory, unused."""
        dependents = self.recipes.dependents(pages)
        if dependents or any(self.book[page_id].state in UNDER_WAY for page_id in pages):
            return self._let_go(pages, dependents)
        return ()

    def _let_go(self, pages: tuple[PageId, ...], dependents: list[PageId]) -> Actions:
        yield from self._recompute_all(dependents)
        yield from self._transfers.settle([self.book[page_id] for page_id in pages])

    def pinned(self, pages: tuple[PageId, ...]) -> Iterable[Action]:
        """``pages`` must be resident until ``unpinned``, and may be written unseen until then."""
        return self._hold(pages, 0, None, pages)

    def unpinned(self, pages: tuple[PageId, ...], written: tuple[PageId, ...] = ()) -> Iterable[Action]:
        """Undoes one ``pinned``; meanwhile ``written`` may have changed."""
        stale = self.book.write(written)
        self.book.unpin(pages, self.view.tick)
        return self._settle(stale)

    def reclaim(self) -> Actions:
        """Everything that may be evicted shall be."""
        yield from self._eviction.free(None)

    def restore(self, pages: tuple[PageId, ...]) -> Actions:
        """``pages`` shall come back, whatever the limit."""
        unready = self.book.pin(pages)  # what is back must not leave again to make room for the rest (see _fetch)
        try:
            yield from self._recompute_all([page.id for page in unready if page.state is State.DROPPED])
            yield from self._fetch(unready)
        finally:
            self.book.unpin(pages, self.view.tick)

    def limit_changed(self, nbytes: int) -> Iterable[Action]:
        """The limit is ``nbytes`` from now on."""
        self.limit = nbytes
        return self._settle([])

    def step_ended(self) -> Iterable[Action]:
        """A training step (or inference call) ended."""
        counters = self.counters
        counters.steps += 1
        self.view.step_began = self.view.tick
        self.step_demand_bytes = self.book.take_peak_live()
        counters.demand_bytes = max(counters.demand_bytes, self.step_demand_bytes)
        self._transfers.refused.clear()  # what was full or broken may have been mended
        return self._settle([])

    def _die_after_copy(self, page: Page) -> Actions:
        try:
            yield from self._transfers.settle((page,))
        finally:  # also after an interrupt: nobody will say again that it died
            yield from self._die(page)

    def _die(self, page: Page) -> tuple[Action, ...]:
        if page.state is State.DROPPED:
            self.recipes.remove(page.id)
        tier = page.tier
        self.book.apply(page, Trigger.DIE)
        return (Discard(page.id, tier),) if tier else ()

    # -- around an operation -----------------------------------------------------------------------------------------

    def _hold(
        self, pages: tuple[PageId, ...], new_bytes: int, prefetch: Prefetch | None, writes: tuple[PageId, ...]
    ) -> Iterable[Action]:
        """Pin ``pages`` and make them resident, and room for ``new_bytes``; then start to prefetch."""
        unready = self.book.pin(pages)
        is_ready = not unready and prefetch is None and self.limit - self.book.ledger.device >= new_bytes
        if is_ready and not (self.recipes and self.recipes.dependents(writes)):
            self.counters.room_from_free += 1
            return ()
        return self._make_ready(unready, new_bytes, prefetch, writes, to_unpin=pages)

    def _make_ready(
        self,
        unready: list[Page],
        new_bytes: int,
        prefetch: Prefetch | None,
        writes: tuple[PageId, ...],
        to_unpin: tuple[PageId, ...] = (),
    ) -> Actions:
        """Make room for those of ``unready`` that are away and for ``new_bytes``, fetch ``unready``, then prefetch.

        If anything is raised, ``to_unpin`` are unpinned.
        """
        try:
            if prefetch is not None and prefetch.evict:
                yield from self._start_evictions(prefetch.evict, prefetch.waits)
            if prefetch is not None and prefetch.drop:
                yield from self._drop_or_evict(prefetch.drop)
            if self.recipes:
                # What depends on ``writes`` is recomputed before they change: it could not be afterwards.
                dropped = [page.id for page in unready if page.state is State.DROPPED]
                yield from self._recompute_all([*dropped, *self.recipes.dependents(writes)])
            missing_bytes = new_bytes + self.book.ledger.device - self.limit
            for page in unready:
                if page.state is State.EVICTED:
                    missing_bytes += page.nbytes
            if missing_bytes > 0:
                yield from self._eviction.make_room(missing_bytes, self.limit)
            else:
                self.counters.room_from_free += 1
            if unready:
                yield from self._fetch(unready)
            if prefetch is not None and prefetch.fetch:
                yield from self._start_fetches(prefetch.fetch, new_bytes)
        except BaseException:
            self.book.unpin(to_unpin, self.view.tick)
            raise

    def _settle(self, stale: list[tuple[PageId, Tier]]) -> Iterable[Action]:
        """After an operation: give up stale copies, then go back under the limit as far as the tiers allow."""
        if stale or self.book.ledger.device > self.limit:
            return self._go_back(stale)
        return ()

    def _go_back(self, stale: list[tuple[PageId, Tier]]) -> Actions:
        yield from self._transfers.discard(stale)
        if self.room < 0:
            yield from self._eviction.free(-self.room)

    # -- prefetching: start, and wait for nothing --------------------------------------------------------------------

    def _start_evictions(self, pages: Iterable[PageId], waits: bool = False) -> Actions:
        """Start to copy these down, and free those of which there is a copy; all of them if it ``waits``."""
        started = []
        for page_id in pages:
            page = self.book[page_id]
            if not self.book.is_candidate(page):
                continue
            if page.state is State.RESIDENT:
                yield from self._transfers.start_evict(page)
                started.append(page)
            elif page.state is State.CLEAN:
                yield from self._transfers.release(page)
        if waits:
            yield from self._transfers.release_all([page for page in started if page.state is State.EVICTING])

    def _drop_or_evict(self, recipes: Iterable[Recipe]) -> Actions:
        """Free the pages of ``recipes``; start to evict those that cannot be recomputed."""
        for recipe in recipes:
            page = self.book[recipe.page]
            if not self.book.is_candidate(page) or self._is_any_pinned(recipe.inputs):
                continue  # an input that is in use may be being written
            if not (yield from self._transfers.drop(page, recipe)):
                yield from self._start_evictions((page.id,))

    def _is_any_pinned(self, pages: Iterable[PageId]) -> bool:
        return any(page_id in self.book and self.book[page_id].pins for page_id in pages)

    def _start_fetches(self, pages: Iterable[PageId], new_bytes: int) -> Actions:
        """Start to fetch these, the first needed first, as long as there is room beside ``new_bytes``."""
        for page_id in pages:
            page = self.book[page_id]
            if page.state is not State.EVICTED:
                continue
            if self.room - new_bytes < page.nbytes:
                return
            error = yield from self._transfers.start_fetch(page)
            if error is not None:
                return  # whoever needs it will try again

    # -- fetching and recomputing what is needed ---------------------------------------------------------------------

    def _fetch(self, pages: list[Page]) -> Actions:
        """Make ``pages`` usable: start all fetches, then wait for each, also if one fails."""
        try:
            for page in pages:
                if page.state is State.EVICTED:
                    yield from self._insist(self._transfers.start_fetch, page)
        finally:
            yield from self._transfers.finish_all(pages)

    def _insist(self, attempt: Callable[[Page], Attempt], page: Page) -> Actions:
        """Try twice: a device that has no room after all gets a second try with everything else gone (N9)."""
        if (yield from attempt(page)) is None:
            return
        yield from self._eviction.free(None)
        error = yield from attempt(page)
        if error is not None:
            try:
                raise error
            finally:
                del error  # which holds this frame (N21)

    def _recompute_all(self, pages: Iterable[PageId]) -> Actions:
        """Recompute dropped ``pages``."""
        for page_id in pages:
            if page_id in self.recipes:  # else it was recomputed meanwhile, as an input of another
                yield from self._recompute_chain(page_id)

    def _recompute_chain(self, page_id: PageId) -> Actions:
        """Recompute the dropped page, and before it what it needs. Inputs are pinned until they have been used."""
        inputs: dict[PageId, tuple[PageId, ...]] = {}
        unready: dict[PageId, list[Page]] = {}

        def missing_input(waiting: PageId) -> PageId | None:
            if waiting not in inputs:
                inputs[waiting] = self.recipes[waiting].inputs
                unready[waiting] = self.book.pin(inputs[waiting])
            for page in unready[waiting]:
                if page.state is State.DROPPED:
                    return page.id
            return None

        try:
            for chain in inputs_first(page_id, missing_input):
                page = self.book[chain[-1]]
                needed_bytes = page.nbytes + self.recipes[page.id].extra_bytes
                yield from self._make_ready(unready[page.id], needed_bytes, None, ())
                yield from self._insist(self._transfers.recompute, page)
                self.book.unpin(inputs.pop(page.id), self.view.tick)
        finally:
            for pinned in inputs.values():
                self.book.unpin(pinned, self.view.tick)
