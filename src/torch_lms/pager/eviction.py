"""Makes room on the device: asks the policy for victims until enough of them have left."""

from collections.abc import Generator

from torch_lms.errors import StoreFullError
from torch_lms.pager.actions import Action, Actions
from torch_lms.pager.transfers import Transfers
from torch_lms.policy import Policy, View
from torch_lms.residency import Book, Page, State
from torch_lms.units import format_bytes

Freed = Generator[Action, Exception | None, tuple[int, int]]
"""Yields actions, is sent the outcome of each, and returns how many pages left, and their bytes."""


class Eviction:
    """Frees bytes of the device.

    Args:
        book: all pages.
        transfers: moves one of them.
        policy: chooses the victims.
        view: what it may choose from.
    """

    def __init__(self, book: Book, transfers: Transfers, policy: Policy, view: View) -> None:
        self._book = book
        self._transfers = transfers
        self._policy = policy
        self._view = view

    def make_room(self, nbytes: int, limit: int) -> Actions:
        """Free ``nbytes``, as far as there are pages that may be evicted; count where the room came from.

        Raises:
            StoreFullError: no lower tier can take a page that must leave to keep to ``limit``.
        """
        count, freed = yield from self.free(nbytes)
        counters = self._transfers.counters
        if count == 0:
            counters.room_from_free += 1
        elif not self._book.has_candidates:
            counters.room_from_all += 1
        elif count == 1:
            counters.room_from_one += 1
        else:
            counters.room_from_some += 1
        if freed < nbytes and self._book.has_candidates:
            raise self._refusal(nbytes - freed, limit)

    def free(self, nbytes: int | None) -> Freed:
        """Evict until ``nbytes`` are freed (None: all that may be). How many pages left, and their bytes."""
        count = 0
        freed = 0
        while True:
            missing = None if nbytes is None else nbytes - freed
            tried, newly_left, newly_freed = yield from self._free_once(missing)
            count += newly_left
            freed += newly_freed
            if nbytes is not None and freed >= nbytes:
                return count, freed
            if newly_left < tried:
                continue  # some copies failed: try other tiers, or other pages
            if not (yield from self._let_arrive()):
                return count, freed

    def _free_once(self, nbytes: int | None) -> Generator[Action, Exception | None, tuple[int, int, int]]:
        """Evict until ``nbytes`` are freed, if no copy fails. How many pages were tried, how many left, their bytes.

        All copies are started before any is waited for.
        """
        dropped: list[int] = []
        evicted: list[Page] = []
        planned = 0
        try:
            for page in self._policy.victims(self._view):
                if nbytes is not None and planned >= nbytes:
                    break
                if not self._book.is_candidate(page):
                    continue
                recipe = self._policy.recipe(page.id)
                if recipe is not None and (yield from self._transfers.drop(page, recipe)):
                    dropped.append(page.nbytes)
                elif page.state is not State.RESIDENT or (yield from self._transfers.start_evict(page)):
                    self._book.withdraw(page)
                    evicted.append(page)
                else:
                    continue
                planned += page.nbytes
        finally:  # an interrupt must not leave copies under way behind
            left, freed = yield from self._transfers.release_all(evicted)
        return len(evicted) + len(dropped), left + len(dropped), freed + sum(dropped)

    def _let_arrive(self) -> Generator[Action, Exception | None, bool]:
        """Finish the fetches of pages that nobody needs yet: then these may be evicted. Whether there was one."""
        arriving = [page for page in self._book.fetching.values() if not page.pins]
        yield from self._transfers.settle(arriving)
        return bool(arriving)

    def _refusal(self, nbytes: int, limit: int) -> StoreFullError:
        refused = self._transfers.refused
        failures = list(refused.values())
        refused.clear()  # whoever tries again may have mended it
        why = f". The last attempt failed: {failures[-1]}" if failures else ""
        tiers = ", ".join(
            f"{tier.value} holds {format_bytes(self._book.ledger.below(tier))} of at most {format_bytes(capacity)}"
            for tier, capacity in self._transfers.tiers.items()
        )
        return StoreFullError(
            f"{format_bytes(nbytes)} more must leave the device to stay under the limit of {format_bytes(limit)}, "
            f"and no lower tier can take them ({tiers}). Nothing is lost. Raise host_limit, choose a spill_dir with "
            f"more free space, or raise limit{why}"
        )
