"""Moves that the native interposer has decided on: a plan's, between two operations."""

from collections.abc import Callable, Sequence
from enum import IntEnum

from torch_lms.capture.registry import Entry
from torch_lms.errors import StoreError
from torch_lms.residency import Book, PageId, State, Tier
from torch_lms.runtime.executor import Executor


class Act(IntEnum):
    """As ``native/csrc/moving.h`` has it."""

    DISCARD = 0
    START_EVICT = 1
    FINISH_EVICT = 2
    RELEASE = 3
    START_FETCH = 4
    FINISH_FETCH = 5


STATES = (State.RESIDENT, State.CLEAN, State.EVICTING, State.EVICTED, State.FETCHING)
"""By the numbers that ``native/csrc/pages.h`` gives them."""

OTHER_STATE = len(STATES)
"""The number of all other states there."""

NUMBERS = {state: number for number, state in enumerate(STATES)}

_IF_IT_FAILED = (
    State.RESIDENT,
    State.RESIDENT,
    State.RESIDENT,
    State.CLEAN,
    State.EVICTED,
    State.EVICTED,
)
"""The state of a page after an act that failed: see ``pager.Transfers``."""

_START_EVICT = int(Act.START_EVICT)  # compared for every move

Fields = tuple[int, PageId, int, int]
"""A move, as the interposer tells of it: act, page, tier, and the operation that used the page last."""


class Moves:
    """Performs a plan's moves before an operation.

    Args:
        executor: moves bytes.
        book: knows the last uses of pages that were not used since ``tick``.
        tiers: by the numbers that the interposer has for them.
        tick: of the operation from which it counts.

    Attributes:
        done: how many were performed.
        failed: the page whose move failed; -1 if none did.
        state: of that page, by its number.
    """

    def __init__(self, executor: Executor, book: Book, tiers: Sequence[Tier], tick: int) -> None:
        self.done = 0
        self.failed: PageId = -1
        self.state = 0
        self._executor = executor
        self._book = book
        self._tiers = tiers
        self._tick = tick

    def perform(self, moves: Sequence[Fields], entry_of: Callable[[PageId], Entry]) -> bool:
        """Perform ``moves``. Whether that was possible: else the engine has to try by itself, and hears why not."""
        executor = self._executor
        acts: tuple[Callable[..., None], ...] = (
            *(executor.discard, executor.start_evict, executor.finish_evict, executor.release),
            *(executor.start_fetch, executor.finish_fetch),
        )
        for act, page, tier, later in moves:
            entry = entry_of(page)
            try:
                if act == _START_EVICT:
                    executor.start_evict(entry, self._tiers[tier], self._last_use(page, later))
                else:
                    acts[act](entry)
            except BaseException as error:
                self._fail(Act(act), entry, error)
                if isinstance(error, StoreError) or executor.is_out_of_memory(error):
                    return False
                raise
            self.done += 1
        return True

    def _last_use(self, page: PageId, later: int) -> int:
        if later >= 0:
            return self._tick + later
        known = self._book.get(page)
        return self._tick if known is None else known.last_use

    def _fail(self, act: Act, entry: Entry, error: BaseException) -> None:
        state = _IF_IT_FAILED[act]
        if act is Act.RELEASE and not isinstance(error, Exception):
            state = State.EVICTED  # interrupted, it may be freed by now: to fetch what is there does no harm
        if act in (Act.START_EVICT, Act.FINISH_EVICT):
            self._executor.discard(entry)
        self.failed = entry.page
        self.state = NUMBERS[state]
