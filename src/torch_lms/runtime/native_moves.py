"""Moves that the native interposer has decided on: a plan's, between two operations."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from torch_lms.capture.registry import Entry
from torch_lms.engine import Spent
from torch_lms.errors import StoreError
from torch_lms.policy import Recipe
from torch_lms.residency import PageId, State, Tier
from torch_lms.runtime.backend import DeviceBackend


class Act(IntEnum):
    """As ``native/csrc/moving.h`` has it."""

    DISCARD = 0
    START_EVICT = 1
    FINISH_EVICT = 2
    RELEASE = 3
    START_FETCH = 4
    FINISH_FETCH = 5
    DROP = 6
    RECOMPUTE = 7


STATES = (State.RESIDENT, State.CLEAN, State.EVICTING, State.EVICTED, State.FETCHING, State.DROPPED)
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
    State.RESIDENT,
    State.DROPPED,
)
"""The state of a page after an act that failed: see ``pager.Transfers``."""

_START_EVICT, _DROP, _RECOMPUTE = int(Act.START_EVICT), int(Act.DROP), int(Act.RECOMPUTE)  # compared for every move

Fields = tuple[int, PageId, int, int]
"""A move, as the interposer tells of it: act, page, tier, and the operation that used the page last."""


class Moves:
    """Performs a plan's moves before an operation.

    Args:
        backend: of the device.
        tiers: by the numbers that the interposer has for them.
        tick: of the operation from which it counts.
        writes_of: how often a page was written so far; -1 if it is none any more.

    Attributes:
        done: how many were performed.
        failed: the page whose move failed; -1 if none did.
        state: of that page, by its number.
    """

    def __init__(
        self, backend: DeviceBackend, tiers: Sequence[Tier], tick: int, writes_of: Callable[[PageId], int]
    ) -> None:
        self.done = 0
        self.failed: PageId = -1
        self.state = 0
        self._backend = backend
        self._executor = backend.executor
        self._tiers = tiers
        self._tick = tick
        self._writes_of = writes_of

    def perform(
        self,
        moves: Sequence[Fields],
        recipes: Mapping[PageId, Recipe],
        entry_of: Callable[[PageId], Entry],
        spent: Spent,
    ) -> bool:
        """Perform ``moves``. Whether that was possible: else the engine has to try by itself, and hears why not.

        Args:
            moves: one after the other.
            recipes: of the pages that are dropped.
            entry_of: the page of a number.
            spent: hears of recomputations.
        """
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
                elif act == _DROP:
                    self._backend.drop(entry, recipes[page], self._writes_of)
                elif act == _RECOMPUTE:
                    self._backend.recompute(entry, spent)
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
        known = self._backend.engine.pager.book.get(page)
        return self._tick if known is None else known.last_use

    def _fail(self, act: Act, entry: Entry, error: BaseException) -> None:
        if act in (Act.RELEASE, Act.DROP) and not isinstance(error, Exception):
            self.done += 1  # interrupted, it may be freed by now: to fetch or recompute what is there does no harm
            return
        if act in (Act.START_EVICT, Act.FINISH_EVICT):
            self._executor.discard(entry)
        self.failed = entry.page
        self.state = NUMBERS[_IF_IT_FAILED[act]]
