"""Moves single pages. Each method yields the actions for one page, and keeps the book true to what became of them."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress

from torch_lms.errors import StoreError
from torch_lms.pager.actions import (
    Action,
    Actions,
    Discard,
    Drop,
    FinishEvict,
    FinishFetch,
    Recompute,
    Release,
    StartEvict,
    StartFetch,
)
from torch_lms.pager.counters import Counters
from torch_lms.pager.recipes import Recipes
from torch_lms.policy import Recipe
from torch_lms.residency import Book, Page, PageId, State, Tier, Trigger

Attempt = Generator[Action, Exception | None, Exception | None]
"""Yields actions, is sent the outcome of each, and returns why it failed."""

Trial = Generator[Action, Exception | None, bool]
"""The same; returns whether it succeeded."""


class Transfers:
    """Evicts, fetches, drops and recomputes pages of ``book``.

    An interrupt may come in the midst of any action, and then nobody knows whether that was done. So every method
    leaves behind what does no harm either way.

    Args:
        book: of the pages.
        tiers: the lower tiers, nearest first, and the most bytes of each, which may change.

    Attributes:
        counters: what was done.
        recipes: of the dropped pages.
        refused: why a tier could not take a page, in this step; it is not asked again for that page.
    """

    def __init__(self, book: Book, tiers: Mapping[Tier, int]) -> None:
        self.tiers = tiers
        self.counters = Counters()
        self.recipes = Recipes()
        self.refused: dict[tuple[PageId, Tier | None], str] = {}
        self._book = book

    # -- eviction ----------------------------------------------------------------------------------------------------

    def start_evict(self, page: Page) -> Trial:
        """Try the tiers in turn, nearest first; whether a copy is under way."""
        ledger = self._book.ledger
        for tier, capacity in self.tiers.items():
            if (page.id, tier) in self.refused:
                continue
            if ledger.below(tier) + page.nbytes > capacity:
                yield from self.discard(self._superfluous(tier, ledger.below(tier) + page.nbytes - capacity))
            if ledger.below(tier) + page.nbytes > capacity:
                continue
            self._book.apply(page, Trigger.START_EVICT, tier)
            try:
                error = yield StartEvict(page.id, tier)
            except BaseException:
                yield from self._abandon_evict(page)
                raise
            if error is None:
                return True
            self._fail_evict(page, error)
        return False

    def finish_evict(self, page: Page) -> Trial:
        """Wait for the copy of ``page``; whether it succeeded."""
        try:
            error = yield FinishEvict(page.id)
        except BaseException:
            yield from self._abandon_evict(page)
            raise
        if error is not None:
            self._fail_evict(page, error)
            return False
        self._book.apply(page, Trigger.FINISH_EVICT)
        page.has_new_copy = True
        self.counters.evictions += 1
        self.counters.evicted_bytes += page.nbytes
        return True

    def release(self, page: Page) -> Actions:
        """Free the device bytes of ``page``, which is clean."""
        self._book.withdraw(page)
        if not page.has_new_copy:
            self.counters.clean_drops += 1
        page.has_new_copy = False
        try:
            yield Release(page.id)
        except Exception:  # it was not freed
            self._book.offer(page)
            raise
        except BaseException:  # an interrupt: it may be freed by now, and fetching what is there does no harm
            self._book.apply(page, Trigger.RELEASE)
            raise
        self._book.apply(page, Trigger.RELEASE)

    def release_all(self, pages: list[Page]) -> Generator[Action, Exception | None, tuple[int, int]]:
        """Finish the evictions of ``pages`` and free them, also if one fails. How many were freed, and their bytes."""
        count = 0
        freed = 0
        failures: list[BaseException] = []
        for page in pages:
            try:
                if page.state is State.EVICTING and not (yield from self.finish_evict(page)):
                    continue
                yield from self.release(page)
                count += 1
                freed += page.nbytes
            except BaseException as error:
                failures = [error]
        if failures:
            raise failures.pop()  # in no variable: it holds this frame (N21)
        return count, freed

    def _superfluous(self, tier: Tier, nbytes: int) -> list[tuple[PageId, Tier]]:
        """Lower copies of ``nbytes`` of pages in use, for room in ``tier``; none if these are not enough.

        Idle pages keep their copies: they can be evicted without a transfer, and that makes room on the device.
        """
        in_use = [page for page in self._book if page.pins and page.state is State.CLEAN and page.tier is tier]
        if sum(page.nbytes for page in in_use) < nbytes:
            return []
        given_up: list[tuple[PageId, Tier]] = []
        for page in in_use:
            if nbytes > 0:
                given_up += self._book.write((page.id,))
                nbytes -= page.nbytes
        return given_up

    def _fail_evict(self, page: Page, error: Exception) -> None:
        """The page stays where it was; the tier is not asked for it again in this step."""
        self.refused[page.id, page.tier] = str(error)  # not the error: its traceback holds tensors (N21)
        self._book.apply(page, Trigger.FAIL_EVICT)

    def _abandon_evict(self, page: Page) -> Actions:
        """Interrupted, nobody knows how far: the page stays where it was, and what there is of its copy is given up."""
        tier = page.tier
        self._book.apply(page, Trigger.FAIL_EVICT)
        if tier is not None:
            yield Discard(page.id, tier)

    def discard(self, copies: Iterable[tuple[PageId, Tier]]) -> Actions:
        """Give up lower copies: every one of them, also if one is interrupted. Nobody else would."""
        failures: list[BaseException] = []
        for page_id, tier in copies:
            try:
                yield Discard(page_id, tier)
            except BaseException as error:
                failures = [error]
        if failures:
            raise failures.pop()  # in no variable: it holds this frame (N21)

    # -- fetching ----------------------------------------------------------------------------------------------------

    def start_fetch(self, page: Page) -> Attempt:
        """Start to fetch ``page``; why that was not possible."""
        self._book.apply(page, Trigger.START_FETCH)
        try:
            error = yield StartFetch(page.id)
        except BaseException:
            self._book.apply(page, Trigger.FAIL_FETCH)
            raise
        if error is not None:
            self._book.apply(page, Trigger.FAIL_FETCH)
        return error

    def finish_fetch(self, page: Page) -> Actions:
        """Wait for ``page``, or raise why it did not come."""
        try:
            error = yield FinishFetch(page.id)
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # which holds this frame (N21)
        except BaseException:
            self._book.apply(page, Trigger.FAIL_FETCH)
            raise
        self._book.apply(page, Trigger.FINISH_FETCH)
        self.counters.fetches += 1
        self.counters.fetched_bytes += page.nbytes

    def finish(self, page: Page) -> Trial | Actions | tuple[()]:
        """Wait for the copy of ``page`` if one is under way."""
        if page.state is State.EVICTING:
            return self.finish_evict(page)
        if page.state is State.FETCHING:
            return self.finish_fetch(page)
        return ()

    def settle(self, pages: Iterable[Page]) -> Actions:
        """The same for pages that nobody waits for: if it fails, whoever needs the page will hear of it."""
        for page in pages:
            with suppress(StoreError):
                yield from self.finish(page)

    def finish_all(self, pages: Iterable[Page]) -> Actions:
        """Wait for each of ``pages``, also if one fails."""
        failures: list[BaseException] = []
        for page in pages:
            try:
                yield from self.finish(page)
            except BaseException as error:
                failures = [error]
        if failures:
            raise failures.pop()  # in no variable: it holds this frame (N21)

    # -- dropping and recomputing ------------------------------------------------------------------------------------

    def drop(self, page: Page, recipe: Recipe) -> Trial:
        """Free ``page`` without a copy; whether that was possible."""
        if page.state is not State.RESIDENT:
            return False
        for page_id in recipe.inputs:
            input_page = self._book.get(page_id)
            if input_page is None or input_page.unpageable or input_page.pins:
                return False  # an input that is in use may be being written
        self._book.withdraw(page)
        try:
            error = yield Drop(page.id, recipe)
        except Exception:  # it was not freed
            self._book.offer(page)
            raise
        except BaseException:  # an interrupt: it may be freed by now, and recomputing what is there does no harm
            self._dropped(page, recipe)
            raise
        if error is not None:
            self._book.offer(page)
            return False
        self._dropped(page, recipe)
        return True

    def _dropped(self, page: Page, recipe: Recipe) -> None:
        self._book.apply(page, Trigger.DROP)
        self.recipes.add(recipe)

    def recompute(self, page: Page) -> Attempt:
        """Recompute ``page``, whose inputs are resident; why that was not possible."""
        error = yield Recompute(page.id)
        if error is None:
            self.recipes.remove(page.id)
            self._book.apply(page, Trigger.RECOMPUTE)
            self.counters.recomputes += 1
            self.counters.recomputed_bytes += page.nbytes
        return error
