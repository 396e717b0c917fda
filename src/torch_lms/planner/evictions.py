"""Which gaps to use, so that the limit holds: those that move least, or that take least to be made again."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from torch_lms.planner.gaps import Gap, gaps_of
from torch_lms.planner.room import Room
from torch_lms.trace import Trace

_LEAST_ROUNDS, _MOST_ROUNDS, _GAPS_IN_ALL = 40, 200, 50_000
"""Small steps can afford more rounds: a plan must take less time than a step."""

_SHARES = (0.02, 0.05, 0.1, 0.2)
_THRIFTS = (0.5, 1.0, 2.0)
_AS_GOOD_AS_FREE = 1000.0
_LEAST_S = 1e-9
"""Of an operation: clocks may have seen nothing."""


def choose(trace: Trace, limit: int) -> list[Gap]:
    """Gaps of ``trace`` in which to have their pages away, so that ``limit`` holds, as well as can be.

    Where most is over the limit, the page is taken whose absence helps at most operations for its bytes; then those
    that turn out to be needless come back, the dearest first. Then, some rounds long, a part of the choice is undone,
    made again with other weights, and kept if it is cheaper. Deterministic.

    Args:
        trace: the step.
        limit: bytes that its pages may occupy on the device.
    """
    gaps = gaps_of(trace)
    choice = _Choice(Room(trace, limit), gaps, [gap.nbytes for gap in gaps], [gap.version for gap in gaps])
    dice = np.random.default_rng(0)
    choice.fill(np.ones(len(choice.gaps)))
    best, best_price = choice.chosen.copy(), choice.price
    rounds = min(_MOST_ROUNDS, max(_LEAST_ROUNDS, _GAPS_IN_ALL // max(1, len(choice.gaps))))
    for _ in range(rounds if best.any() else 0):
        taken = np.flatnonzero(choice.chosen)
        by_size = dice.random() < 0.5  # many small pages cannot be tried as often as a few large ones are worth it
        order = dice.uniform(0.5, 1.5, len(taken)) * (choice.costs[taken] if by_size else 1)
        choice.give_back(taken[np.argsort(-order)[: max(1, int(dice.choice(_SHARES) * len(taken)))]])
        choice.fill(dice.uniform(0.6, 1.4, len(choice.gaps)), thrift=dice.choice(_THRIFTS))
        if choice.price <= best_price:
            best, best_price = choice.chosen.copy(), choice.price
        else:
            choice.become(best)
    return [choice.gaps[number] for number in np.flatnonzero(best)]


def choose_dropped(room: Room, seconds: Mapping[Gap, float]) -> list[Gap]:
    """Gaps in which to have their pages dropped, so that the limit holds, and little time goes into making them again.

    Args:
        room: under the limit, without what moves; what is chosen is taken from it.
        seconds: for each gap to choose from, what it takes to make its page again.
    """
    costs = [max(cost_s, _LEAST_S) for cost_s in seconds.values()]
    choice = _Choice(room, list(seconds), costs, range(len(seconds)))
    choice.fill(np.ones(len(choice.gaps)))
    return [choice.gaps[number] for number in np.flatnonzero(choice.chosen)]


def moved_out(chosen: list[Gap]) -> int:
    """Bytes that are copied out in each step."""
    return sum({gap.version: gap.nbytes for gap in chosen if not gap.is_copied}.values())


class _Choice:
    """Gaps by their index in ``gaps``, some of them chosen.

    Args:
        room: under the limit; what is chosen is taken from it.
        gaps: to choose from.
        costs: of each.
        contents: gaps of one content pay once; nothing if it is copied already.

    Attributes:
        chosen: for each gap, whether its page is away.
    """

    def __init__(self, room: Room, gaps: list[Gap], costs: Sequence[float], contents: Sequence[int]) -> None:
        self.gaps, self.costs = gaps, np.array(costs, dtype=np.float64)
        self.chosen = np.zeros(len(gaps), dtype=bool)
        self._room = room
        self._nbytes = np.array([gap.nbytes for gap in gaps], dtype=np.int64)
        self._is_copied = np.array([gap.is_copied for gap in gaps], dtype=bool)
        numbers = {content: n for n, content in enumerate(dict.fromkeys(contents))}
        self._content = np.array([numbers[content] for content in contents], dtype=np.int64)
        self._paid = np.zeros(len(numbers), dtype=np.int64)
        spans = [(*gap.spans, (1, 0))[:2] for gap in gaps]  # (1, 0): none
        self._first, self._last = (np.array(spans, dtype=np.int64).reshape(-1, 2, 2)[:, :, side] for side in (0, 1))

    @property
    def price(self) -> float:
        """What the choice costs."""
        paid = np.flatnonzero(self.chosen & ~self._is_copied)
        _, first = np.unique(self._content[paid], return_index=True)
        return float(self.costs[paid][first].sum())

    def take(self, numbers: Iterable[int]) -> None:
        """Choose these gaps."""
        for number in numbers:
            self.chosen[number] = True
            self._paid[self._content[number]] += 1
            self._room.take(self.gaps[number])

    def give_back(self, numbers: Iterable[int]) -> None:
        """Undo ``take``."""
        for number in numbers:
            self.chosen[number] = False
            self._paid[self._content[number]] -= 1
            self._room.give_back(self.gaps[number])

    def become(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Choose exactly these."""
        self.give_back(np.flatnonzero(self.chosen & ~chosen))
        self.take(np.flatnonzero(chosen & ~self.chosen))

    def fill(self, weights: npt.NDArray[np.float64], thrift: float = 1.0) -> None:
        """Choose more until the limit holds, then fewer until each is needed.

        Args:
            weights: of each gap; the dearer ones are preferred.
            thrift: how much it counts against a page that it is larger than need be.
        """
        while (worst := self._room.worst) is not None:
            position, excess = worst
            waiting = ~self.chosen & ((self._first <= position) & (position <= self._last)).any(axis=1)
            if not waiting.any():
                break
            merit = np.where(waiting, self._merit(excess, thrift) * weights, -1.0)
            self.take((int(np.argmax(merit)),))
        taken = np.flatnonzero(self.chosen)
        is_free = self._is_copied[taken] | (self._paid[self._content[taken]] > 1)
        for number in taken[np.lexsort((taken, -self.costs[taken], is_free))]:
            if self._room.is_needless(self.gaps[number]):
                self.give_back((number,))

    def _merit(self, excess: int, thrift: float) -> npt.NDArray[np.float64]:
        """For each gap: operations over the limit that it would bring down, times bytes by cost; less for those larger
        than ``excess``. Once a content is paid for, the other gaps of it are free.
        """
        over = self._room.operations_over
        helped = (over[self._last + 1] - over[self._first]).clip(0).sum(axis=1).astype(np.float64)
        of_content = np.bincount(self._content, weights=np.where(self.chosen, 0.0, helped), minlength=len(self._paid))
        is_free = self._is_copied | (self._paid[self._content] > 0)
        total = np.where(is_free, _AS_GOOD_AS_FREE * helped, of_content[self._content])
        return np.asarray(total * self._nbytes / self.costs * np.minimum(1.0, excess / self._nbytes) ** thrift)
