"""The pager of one device."""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from typing import Any

from torch_lms.errors import InvariantError, StoreError, StoreFullError
from torch_lms.pager.actions import (
    Action,
    Discard,
    Drop,
    FinishEvict,
    FinishFetch,
    Release,
    Remake,
    StartEvict,
    StartFetch,
)
from torch_lms.pager.counters import Counters
from torch_lms.pager.events import (
    Copied,
    Created,
    Died,
    Event,
    Exported,
    LimitChanged,
    OpBegins,
    OpEnds,
    Pinned,
    Reclaim,
    Resized,
    Restore,
    Spoiled,
    StepEnded,
    Unpinned,
)
from torch_lms.policy import Ahead, Policy, Recipe, View
from torch_lms.residency import UNDER_WAY, Book, Page, PageId, State, Tier, Trigger
from torch_lms.units import format_bytes

Actions = Generator[Action, Exception | None, None]
"""Yields actions, is sent the outcome of each."""

Attempt = Generator[Action, Exception | None, Exception | None]
"""The same; returns why it failed."""

_READY = (State.RESIDENT, State.CLEAN)


class Pager:
    """Decides what leaves the device and what comes back.

    Args:
        limit: bytes of device memory that pages may occupy. Soft for the pages of the operation that runs.
        policy: chooses victims.
        tiers: the lower tiers, nearest first, and the most bytes of each.
    """

    def __init__(self, limit: int, policy: Policy, tiers: Mapping[Tier, int]) -> None:
        self.limit = limit
        self.policy = policy
        self.tiers = dict(tiers)
        self.book = Book()
        self.counters = Counters()
        self.step_demand_bytes = 0  # of the last whole step
        self.tick = 0
        self._refused: dict[tuple[PageId, Tier | None], str] = {}  # in this step, and why
        self._clean: dict[PageId, Page] = {}
        self._leaving: dict[PageId, Page] = {}
        self._dirty: dict[PageId, Page] = {}
        self._coming: dict[PageId, Page] = {}
        self._recipes: dict[PageId, Recipe] = {}  # of those that are dropped
        self._made_from: dict[PageId, dict[PageId, None]] = {}
        self._offers = {State.CLEAN: self._clean, State.EVICTING: self._leaving, State.RESIDENT: self._dirty}
        self._handlers: dict[type[Any], Callable[..., Iterable[Action]]] = {
            OpBegins: self._op_begins,
            OpEnds: self._op_ends,
            Created: self._created,
            Died: self._died,
            Exported: self._exported,
            Resized: self._resized,
            Spoiled: self._spoiled,
            Pinned: self._pinned,
            Unpinned: self._unpinned,
            Reclaim: self._reclaim,
            Restore: self._restore,
            Copied: self._copied,
            LimitChanged: self._limit_changed,
            StepEnded: self._step_ended,
        }

    def handle(self, event: Event) -> Iterable[Action]:
        """The actions that ``event`` calls for: a tuple if none moves a page, else a generator (see ``drive``).

        Raises, while it is driven:
            StoreFullError: room is needed and no lower tier can take a page.
            Exception: whatever kept a needed page from coming back, as it was sent.
        """
        return self._handlers[type(event)](*event)

    @property
    def room(self) -> int:
        """Bytes left under the limit; negative while an operation's own pages exceed it."""
        return self.limit - self.book.ledger.device

    @property
    def view(self) -> View:
        """What the policy may choose from now."""
        return View(self._clean, self._dirty, self.tick, self._leaving)

    @property
    def has_dropped(self) -> bool:
        """Whether writes had better be told of beforehand."""
        return bool(self._recipes)

    @property
    def has_copies_under_way(self) -> bool:
        """Whether ``Copied`` may have something to say."""
        return bool(self._leaving or self._coming)

    def validate(self) -> None:
        """Check the book, and that the pages offered to the policy are exactly those that may leave."""
        self.book.validate()
        idle = {page.id for page in self.book if self._may_leave(page)}
        offered = {**self._clean, **self._leaving, **self._dirty}
        if offered.keys() != idle:
            raise InvariantError(f"offered to the policy: {sorted(offered)}; may leave: {sorted(idle)}")
        for page in offered.values():
            if page.id not in self._offers[page.state]:
                raise InvariantError(f"{page.story}: offered as if it were not '{page.state.value}'")
        coming = {page.id for page in self.book if page.state is State.FETCHING}
        if coming != self._coming.keys():
            raise InvariantError(f"taken to be on their way: {sorted(self._coming)}; are: {sorted(coming)}")
        dropped = {page.id for page in self.book if page.state is State.DROPPED}
        inputs = {page for recipe in self._recipes.values() for page in recipe.inputs}
        if dropped != self._recipes.keys() or inputs != self._made_from.keys():
            raise InvariantError(f"dropped: {sorted(dropped)}; there are recipes for: {sorted(self._recipes)}")
        if not all(page in self.book for page in inputs):
            raise InvariantError(f"needed to make others, but dead: {sorted(p for p in inputs if p not in self.book)}")

    # -- events ------------------------------------------------------------------------------------------------------

    def _op_begins(
        self, pages: tuple[PageId, ...], new_bytes: int, writes: tuple[PageId, ...] = ()
    ) -> Iterable[Action]:
        self.tick += 1
        return self._hold(pages, new_bytes, self.policy.ahead(self.view), writes)

    def _op_ends(self, pages: tuple[PageId, ...], written: tuple[PageId, ...]) -> Iterable[Action]:
        discards = self._write(written)
        self._unpin(pages)
        if self.policy.knows_better:
            return self._give_up(discards) if discards else ()
        return self._settle(discards)

    def _created(self, page_id: PageId, nbytes: int, unpageable: str) -> Iterable[Action]:
        page = self.book.add(page_id, nbytes, unpageable)
        page.last_use = self.tick
        self._offer(page)
        return ()

    def _died(self, page_id: PageId) -> Iterable[Action]:
        page = self.book[page_id]
        return self._die_at_last(page) if page.state in UNDER_WAY else self._die(page)

    def _die_at_last(self, page: Page) -> Actions:
        """Its storage died before its copy began, or the executor would have held it: there is nothing to wait for."""
        yield from self._settle_copy(page)
        yield from self._die(page)

    def _die(self, page: Page) -> tuple[Action, ...]:
        self._withdraw(page)
        if page.state is State.DROPPED:
            self._forget_recipe(page)
        tier = page.tier
        self.book.apply(page, Trigger.DIE)
        return (Discard(page.id, tier),) if tier else ()

    def _copied(self, pages: tuple[PageId, ...]) -> Actions:
        for page_id in pages:
            yield from self._settle_copy(self.book[page_id])

    def _exported(self, pages: tuple[PageId, ...], reason: str) -> Iterable[Action]:
        unready = self._pin(pages)
        try:
            yield from self._make_ready(unready, 0, None, pages)
            yield from self._give_up(self._write(pages))
        finally:
            self._unpin(pages)
        for page_id in pages:
            page = self.book[page_id]
            self._withdraw(page)
            page.unpageable = page.unpageable or reason

    def _resized(self, page_id: PageId, nbytes: int) -> Iterable[Action]:
        discards = self._write((page_id,))
        self.book.resize(self.book[page_id], nbytes)
        return self._settle(discards)

    def _spoiled(self, pages: tuple[PageId, ...]) -> Iterable[Action]:
        yield from self._remake_all(self._made_of(pages))

    def _pinned(self, pages: tuple[PageId, ...]) -> Iterable[Action]:
        return self._hold(pages, 0, None, pages)

    def _unpinned(self, pages: tuple[PageId, ...], written: tuple[PageId, ...] = ()) -> Iterable[Action]:
        discards = self._write(written)
        self._unpin(pages)
        return self._settle(discards)

    def _reclaim(self) -> Iterable[Action]:
        yield from self._free(None)

    def _restore(self, pages: tuple[PageId, ...]) -> Iterable[Action]:
        unready = self._pin(pages)  # what is back must not leave again to make room for the rest (see _start_fetch)
        try:
            yield from self._remake_all([page for page in unready if page.state is State.DROPPED])
            yield from self._fetch(unready)
        finally:
            self._unpin(pages)

    def _limit_changed(self, nbytes: int) -> Iterable[Action]:
        self.limit = nbytes
        return self._settle([])

    def _step_ended(self) -> Iterable[Action]:
        self.counters.steps += 1
        ledger = self.book.ledger
        self.step_demand_bytes, ledger.peak_live = ledger.peak_live, ledger.live
        self.counters.demand_bytes = max(self.counters.demand_bytes, self.step_demand_bytes)
        self._refused.clear()  # what was full or broken may have been mended
        return self._settle([])

    # -- pages in use ------------------------------------------------------------------------------------------------

    def _pin(self, pages: tuple[PageId, ...]) -> list[Page]:
        """Pin ``pages``; those that are away or under way."""
        unready = []
        for page_id in pages:
            page = self.book[page_id]
            page.pins += 1
            self._withdraw(page)
            if page.state not in _READY:
                unready.append(page)
        return unready

    def _unpin(self, pages: tuple[PageId, ...]) -> None:
        for page_id in pages:
            if page_id in self.book:  # it may have died meanwhile: `set_` drops a storage that its operation pinned
                page = self.book[page_id]
                page.pins -= 1
                page.last_use = self.tick
                self._offer(page)

    def _write(self, pages: tuple[PageId, ...]) -> list[Action]:
        """``pages`` were written: their lower copies are worth nothing now."""
        discards: list[Action] = []
        for page_id in pages:
            page = self.book[page_id] if page_id in self.book else None
            if page is None:
                continue
            page.writes += 1
            if page.state is State.CLEAN:  # if it has left meanwhile, that was after the write
                tier = page.tier
                assert tier is not None
                discards.append(Discard(page_id, tier))
                self._withdraw(page)
                self.book.apply(page, Trigger.WRITE)
                self._offer(page)
        return discards

    def _hold(
        self, pages: tuple[PageId, ...], new_bytes: int, ahead: Ahead | None, writes: tuple[PageId, ...]
    ) -> Iterable[Action]:
        """Pin ``pages`` and make them resident, and room for ``new_bytes``; then what is ``ahead``."""
        unready = self._pin(pages)
        if not unready and self.room >= new_bytes and ahead is None and not self._made_of(writes):
            self.counters.room_from_free += 1
            return ()
        return self._undone_by(self._unpin, pages, self._make_ready(unready, new_bytes, ahead, writes))

    def _undone_by(self, undo: Callable[[tuple[PageId, ...]], None], pages: tuple[PageId, ...], do: Actions) -> Actions:
        try:
            yield from do
        except BaseException:
            undo(pages)
            raise

    def _settle(self, discards: list[Action]) -> Iterable[Action]:
        """After an operation: give up stale copies, then go back under the limit as far as the tiers allow."""
        return self._go_back(discards) if discards or self.room < 0 else ()

    def _go_back(self, discards: list[Action]) -> Actions:
        yield from self._give_up(discards)
        if self.room < 0:
            yield from self._free(-self.room)

    def _give_up(self, discards: list[Action]) -> Actions:
        """Every one of them, also if one is interrupted: nobody else would."""
        failures: list[BaseException] = []
        for discard in discards:
            try:
                yield discard
            except BaseException as error:
                failures = [error]
        if failures:
            raise failures.pop()  # in no variable: it holds this frame (N21)

    def _may_leave(self, page: Page) -> bool:
        return not page.pins and not page.unpageable and page.state in self._offers

    def _offer(self, page: Page) -> None:
        """Put ``page`` last among those that may leave, if it may."""
        if self._may_leave(page):
            self._offers[page.state][page.id] = page

    def _withdraw(self, page: Page) -> None:
        offered = self._offers.get(page.state)
        if offered is not None:
            offered.pop(page.id, None)

    def _is_offered(self, page: Page) -> bool:
        return page.state in self._offers and page.id in self._offers[page.state]

    # -- dropping and making again -----------------------------------------------------------------------------------

    def _drop(self, page: Page, recipe: Recipe) -> Generator[Action, Exception | None, bool]:
        """Free ``page``; whether that was possible."""
        inputs = [self.book[page_id] for page_id in recipe.inputs if page_id in self.book]
        if page.state is not State.RESIDENT or len(inputs) < len(recipe.inputs):
            return False
        if any(other.unpageable or other.pins for other in inputs):
            return False
        self._withdraw(page)
        try:
            error = yield Drop(page.id, recipe)
        except Exception:  # it was not freed
            self._offer(page)
            raise
        except BaseException:  # an interrupt: it may be freed by now, and making what is there does no harm
            self._note_recipe(page, recipe)
            raise
        if error is not None:
            self._offer(page)
            return False
        self._note_recipe(page, recipe)
        return True

    def _note_recipe(self, page: Page, recipe: Recipe) -> None:
        self.book.apply(page, Trigger.DROP)
        self._recipes[page.id] = recipe
        for page_id in recipe.inputs:
            self._made_from.setdefault(page_id, {})[page.id] = None

    def _forget_recipe(self, page: Page) -> None:
        for page_id in self._recipes.pop(page.id).inputs:
            others = self._made_from[page_id]
            del others[page.id]
            if not others:
                del self._made_from[page_id]

    def _made_of(self, pages: Iterable[PageId]) -> list[Page]:
        """The dropped pages for which one of ``pages`` is needed as it is now."""
        return [self.book[made] for page_id in pages for made in self._made_from.get(page_id, ())]

    def _remake_all(self, pages: Iterable[Page]) -> Actions:
        """Make dropped ``pages`` again, and before each what it takes, which stays until it is made."""
        for page in pages:
            chain: list[tuple[Page, tuple[PageId, ...], list[Page]]] = []
            try:
                self._need(page, chain)
                while chain:
                    made, inputs, unready = chain[-1]
                    missing = next((other for other in unready if other.state is State.DROPPED), None)
                    if missing is not None:
                        self._need(missing, chain)
                        continue
                    yield from self._remake(made, self._recipes[made.id], unready)
                    chain.pop()
                    self._unpin(inputs)
            finally:
                for _, inputs, _ in chain:
                    self._unpin(inputs)

    def _need(self, page: Page, chain: list[tuple[Page, tuple[PageId, ...], list[Page]]]) -> None:
        """``page`` is dropped, and to be made again: its inputs stay from now on."""
        recipe = self._recipes.get(page.id)
        if recipe is not None:
            chain.append((page, recipe.inputs, self._pin(recipe.inputs)))

    def _remake(self, page: Page, recipe: Recipe, unready: list[Page]) -> Actions:
        yield from self._make_ready(unready, page.nbytes + recipe.extra_bytes, None, ())
        yield from self._insist(lambda: self._ask(Remake(page.id)))
        self._forget_recipe(page)
        self.book.apply(page, Trigger.REMAKE)
        self.counters.recomputes += 1
        self.counters.recomputed_bytes += page.nbytes
        self._offer(page)

    # -- moving ------------------------------------------------------------------------------------------------------

    def _make_ready(
        self, unready: list[Page], new_bytes: int, ahead: Ahead | None, writes: tuple[PageId, ...]
    ) -> Actions:
        """Room for those of ``unready`` that are away and for ``new_bytes``, then ``unready``; then what is ahead.

        Before that, what is made from ``writes`` is made again: it could not be afterwards.
        """
        if ahead is not None:
            yield from self._let_leave(ahead.leaving)
            yield from self._let_drop(ahead.dropping)
        if self._recipes:
            dropped = [page for page in unready if page.state is State.DROPPED]
            yield from self._remake_all([*dropped, *self._made_of(writes)])
        needed = sum(page.nbytes for page in unready if page.state is State.EVICTED) + new_bytes - self.room
        if needed > 0:
            left, freed = yield from self._free(needed)
            self._count_room(left)
            if freed < needed and self._any_offered():
                self._refuse(needed - freed)
        else:
            self.counters.room_from_free += 1
        yield from self._fetch(unready)
        if ahead is not None:
            yield from self._let_come(ahead.coming, new_bytes)

    def _let_leave(self, pages: Iterable[PageId]) -> Actions:
        """Start to copy these down, and free those of which there is a copy. Waits for nothing."""
        for page_id in pages:
            page = self.book[page_id]
            if not self._is_offered(page):
                continue
            if page.state is State.RESIDENT:
                if (yield from self._start_evict(page)):
                    self._offer(page)
            elif page.state is State.CLEAN:
                yield from self._release(page)

    def _let_drop(self, recipes: Iterable[Recipe]) -> Actions:
        """Free these pages; copy those down that cannot be made again."""
        for recipe in recipes:
            page = self.book[recipe.page]
            if not self._is_offered(page):
                continue
            if any(page_id in self.book and self.book[page_id].pins for page_id in recipe.inputs):
                continue  # it may be being written
            if not (yield from self._drop(page, recipe)):
                yield from self._let_leave((page.id,))

    def _let_come(self, pages: Iterable[PageId], new_bytes: int) -> Actions:
        """Start to fetch these, the first needed first, as long as there is room beside ``new_bytes``."""
        for page_id in pages:
            page = self.book[page_id]
            if page.state is State.EVICTED:
                if self.room - new_bytes < page.nbytes:
                    return
                if (yield from self._try_to_fetch(page)) is not None:
                    return  # whoever needs it will try again

    def _any_offered(self) -> bool:
        return any(self._offers.values())

    def _count_room(self, left: int) -> None:
        if left == 0:
            self.counters.room_from_free += 1
        elif not self._any_offered():
            self.counters.room_from_all += 1
        elif left == 1:
            self.counters.room_from_one += 1
        else:
            self.counters.room_from_some += 1

    def _refuse(self, nbytes: int) -> None:
        tiers = ", ".join(
            f"{tier.value} holds {format_bytes(self._held(tier))} of at most {format_bytes(most)}"
            for tier, most in self.tiers.items()
        )
        failures = list(self._refused.values())
        self._refused.clear()  # whoever tries again may have mended it
        why = f". The last attempt failed: {failures[-1]}" if failures else ""
        raise StoreFullError(
            f"{format_bytes(nbytes)} more must leave the device to stay under the limit of {format_bytes(self.limit)}, "
            f"and no lower tier can take them ({tiers}). Nothing is lost. Raise host_limit, choose a spill_dir with "
            f"more free space, or raise limit{why}"
        )

    def _free(self, nbytes: int | None) -> Generator[Action, Exception | None, tuple[int, int]]:
        """Evict until ``nbytes`` are freed (None: all that may leave). How many pages left, and their bytes."""
        left = freed = 0
        while True:
            tried, more_left, more_freed = yield from self._try_to_free(None if nbytes is None else nbytes - freed)
            left, freed = left + more_left, freed + more_freed
            if nbytes is not None and freed >= nbytes:
                return left, freed
            if more_left == tried and not (yield from self._let_arrive()):
                return left, freed  # else some copies failed: other tiers, or other pages

    def _try_to_free(self, nbytes: int | None) -> Generator[Action, Exception | None, tuple[int, int, int]]:
        """The same, but copies may fail. How many pages were to leave, how many did, and their bytes."""
        freed = left = copied = 0
        dropped: list[int] = []
        leaving: list[Page] = []
        try:
            for page in self.policy.victims(self.view):
                if nbytes is not None and freed >= nbytes:
                    break
                if not self._is_offered(page):
                    continue
                recipe = self.policy.recipe(page.id)
                if recipe is not None and (yield from self._drop(page, recipe)):
                    dropped.append(page.nbytes)
                elif page.state is not State.RESIDENT or (yield from self._start_evict(page)):
                    self._withdraw(page)
                    leaving.append(page)
                else:
                    continue
                freed += page.nbytes
        finally:  # an interrupt must not leave copies under way behind
            left, copied = yield from self._finish_evicts(leaving)
        return len(leaving) + len(dropped), left + len(dropped), copied + sum(dropped)

    def _let_arrive(self) -> Generator[Action, Exception | None, bool]:
        """Pages that nobody needs yet are on their way up: once here, they may leave. Whether there was one."""
        coming = [page for page in self._coming.values() if not page.pins]
        for page in coming:
            yield from self._settle_copy(page)
        return bool(coming)

    def _finish_evicts(self, pages: list[Page]) -> Generator[Action, Exception | None, tuple[int, int]]:
        left = freed = 0
        failures: list[BaseException] = []
        for page in pages:
            try:
                if page.state is State.EVICTING and not (yield from self._finish_evict(page)):
                    continue
                yield from self._release(page)
                left, freed = left + 1, freed + page.nbytes
            except BaseException as error:
                failures = [error]
        if failures:
            raise failures.pop()  # in no variable: it holds this frame (N21)
        return left, freed

    def _start_evict(self, page: Page) -> Generator[Action, Exception | None, bool]:
        """Try the tiers in turn, nearest first; whether a copy is under way."""
        for tier, most in self.tiers.items():
            if (page.id, tier) in self._refused:
                continue
            if self._held(tier) + page.nbytes > most:
                yield from self._give_up(self._superfluous(tier, self._held(tier) + page.nbytes - most))
            if self._held(tier) + page.nbytes > most:
                continue
            self._withdraw(page)
            self.book.apply(page, Trigger.START_EVICT, tier)
            try:
                error = yield StartEvict(page.id, tier)
            except BaseException:
                yield from self._abandon_evict(page)
                raise
            if error is None:
                return True
            self._fail_evict(page, error)
        return False

    def _superfluous(self, tier: Tier, nbytes: int) -> list[Action]:
        """Discards of ``nbytes`` of copies whose pages are in use; of none if these are not enough.

        Idle pages keep their copies: they leave for free, and make room above.
        """
        staying = [page for page in self.book if page.pins and page.state is State.CLEAN and page.tier is tier]
        if sum(page.nbytes for page in staying) < nbytes:
            return []
        discards: list[Action] = []
        for page in staying:
            if nbytes > 0:
                discards += self._write((page.id,))
                nbytes -= page.nbytes
        return discards

    def _finish_evict(self, page: Page) -> Generator[Action, Exception | None, bool]:
        """Wait for the copy of ``page``; whether it succeeded."""
        try:
            error = yield FinishEvict(page.id)
        except BaseException:
            yield from self._abandon_evict(page)
            raise
        if error is not None:
            self._fail_evict(page, error)
            return False
        self._withdraw(page)
        self.book.apply(page, Trigger.FINISH_EVICT)
        page.is_new_below = True
        self.counters.evictions += 1
        self.counters.evicted_bytes += page.nbytes
        self._offer(page)
        return True

    def _release(self, page: Page) -> Actions:
        """Free the device bytes of ``page``, which is clean."""
        self._withdraw(page)
        self.counters.clean_drops += not page.is_new_below
        page.is_new_below = False
        try:
            yield Release(page.id)
        except Exception:  # it was not freed
            self._offer(page)
            raise
        except BaseException:  # an interrupt: it may be freed by now, and fetching what is there does no harm
            self.book.apply(page, Trigger.RELEASE)
            raise
        self.book.apply(page, Trigger.RELEASE)

    def _fail_evict(self, page: Page, error: Exception) -> None:
        """The page stays where it was; the tier is not asked for it again in this step."""
        self._refused[page.id, page.tier] = str(error)  # not the error: its traceback holds tensors (N21)
        self._withdraw(page)
        self.book.apply(page, Trigger.FAIL_EVICT)
        self._offer(page)

    def _abandon_evict(self, page: Page) -> Actions:
        """Interrupted, nobody knows how far: the page stays where it was, and what there is of its copy is given up."""
        tier = page.tier
        self._withdraw(page)
        self.book.apply(page, Trigger.FAIL_EVICT)
        self._offer(page)
        if tier is not None:
            yield Discard(page.id, tier)

    def _held(self, tier: Tier) -> int:
        return self.book.ledger.host if tier is Tier.HOST else self.book.ledger.disk

    def _fetch(self, pages: list[Page]) -> Actions:
        """Make ``pages`` usable: all that are away start, then each is waited for, also if one fails."""
        try:
            for page in pages:
                if page.state is State.EVICTED:
                    yield from self._start_fetch(page)
        finally:
            failures: list[BaseException] = []
            for page in pages:
                try:
                    yield from self._finish_copy(page)
                except BaseException as error:
                    failures = [error]
            if failures:
                raise failures.pop()  # in no variable: it holds this frame (N21)

    def _finish_copy(self, page: Page) -> Actions:
        """Wait for the copy of ``page`` if one is under way."""
        if page.state is State.EVICTING:
            yield from self._finish_evict(page)
        elif page.state is State.FETCHING:
            yield from self._finish_fetch(page)

    def _settle_copy(self, page: Page) -> Actions:
        """The same for a page that nobody waits for: if it fails, whoever needs the page will hear of it."""
        with suppress(StoreError):
            yield from self._finish_copy(page)

    def _finish_fetch(self, page: Page) -> Actions:
        try:
            error = yield FinishFetch(page.id)
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # which holds this frame (N21)
        except BaseException:
            self._fail_fetch(page)
            raise
        del self._coming[page.id]
        self.book.apply(page, Trigger.FINISH_FETCH)
        self.counters.fetches += 1
        self.counters.fetched_bytes += page.nbytes
        self._offer(page)

    def _start_fetch(self, page: Page) -> Actions:
        yield from self._insist(lambda: self._try_to_fetch(page))

    def _insist(self, attempt: Callable[[], Attempt]) -> Actions:
        """A device that has no room after all gets a second try with everything else gone (see N9)."""
        if (yield from attempt()) is None:
            return
        yield from self._free(None)
        error = yield from attempt()
        if error is not None:
            try:
                raise error
            finally:
                del error  # which holds this frame (N21)

    def _ask(self, action: Action) -> Attempt:
        return (yield action)

    def _try_to_fetch(self, page: Page) -> Attempt:
        """Start to fetch ``page``; why that was not possible."""
        self.book.apply(page, Trigger.START_FETCH)
        self._coming[page.id] = page
        try:
            error = yield StartFetch(page.id)
        except BaseException:
            self._fail_fetch(page)
            raise
        if error is not None:
            self._fail_fetch(page)
        return error

    def _fail_fetch(self, page: Page) -> None:
        del self._coming[page.id]
        self.book.apply(page, Trigger.FAIL_FETCH)
