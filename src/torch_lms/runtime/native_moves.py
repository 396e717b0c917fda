"""Moves that the native interposer has decided on: a plan's, between two operations."""

from enum import IntEnum
from typing import NamedTuple

from torch_lms.capture.registry import Entry
from torch_lms.errors import StoreError
from torch_lms.residency import PageId, State, Tier
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

_IF_IT_FAILED = {
    Act.DISCARD: State.RESIDENT,
    Act.START_EVICT: State.RESIDENT,
    Act.FINISH_EVICT: State.RESIDENT,
    Act.RELEASE: State.CLEAN,
    Act.START_FETCH: State.EVICTED,
    Act.FINISH_FETCH: State.EVICTED,
}
"""The state of a page after a move that failed: see ``pager.Transfers``."""


class Move(NamedTuple):
    """A move of one page.

    Attributes:
        act: what is done.
        entry: the page.
        tier: where it goes, if it leaves.
        last_use: of the page, if it leaves: see ``Executor.start_evict``.
    """

    act: Act
    entry: Entry
    tier: Tier
    last_use: int


class Moves:
    """A plan's moves before an operation, performed one by one.

    Attributes:
        done: how many were.
        failed: the page whose move failed; -1 if none did.
        state: of that page.
    """

    def __init__(self, executor: Executor) -> None:
        self.done = 0
        self.failed: PageId = -1
        self.state = State.RESIDENT
        self._executor = executor

    def perform(self, move: Move) -> bool:
        """Perform the next. Whether that was possible: else the engine has to try by itself, and hears why not."""
        try:
            self._perform(move)
        except BaseException as error:
            self._fail(move, error)
            if isinstance(error, StoreError) or self._executor.is_out_of_memory(error):
                return False
            raise
        self.done += 1
        return True

    def _perform(self, move: Move) -> None:
        executor, entry = self._executor, move.entry
        match move.act:
            case Act.DISCARD:
                executor.discard(entry)
            case Act.START_EVICT:
                executor.start_evict(entry, move.tier, move.last_use)
            case Act.FINISH_EVICT:
                executor.finish_evict(entry)
            case Act.RELEASE:
                executor.release(entry)
            case Act.START_FETCH:
                executor.start_fetch(entry)
            case Act.FINISH_FETCH:
                executor.finish_fetch(entry)

    def _fail(self, move: Move, error: BaseException) -> None:
        self.failed = move.entry.page
        self.state = _IF_IT_FAILED[move.act]
        if move.act is Act.RELEASE and not isinstance(error, Exception):
            self.state = State.EVICTED  # interrupted, it may be freed by now: to fetch what is there does no harm
        if move.act in (Act.START_EVICT, Act.FINISH_EVICT):
            self._executor.discard(move.entry)
