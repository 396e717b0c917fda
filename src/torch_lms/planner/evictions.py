"""Which gaps to use, so that the limit holds: those that move least, or that take least time to recompute.

The constants below set how the search by chance goes on, and for how long. How most were chosen is not recorded. How
good the result is, docs/planning.md says ("How good plans are"), and tests/pure/test_planner_evictions.py asserts it.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from torch_lms.planner.gaps import Gap, gaps_of
from torch_lms.planner.headroom import Headroom
from torch_lms.trace import Trace

_MIN_ROUNDS = 40
_ROUNDS_FOR_A_GAP = 5
_GAPS_IN_ALL = 50_000
"""Rounds times gaps, at most. A round takes longer the more gaps there are, so small steps can afford more rounds.
Those of a few gaps need no more."""

_SHARES = (0.02, 0.05, 0.1, 0.2)
"""How much of the choice a round may undo; one of these, by chance."""

_SPREAD = 1.0
"""Of the logarithms of a round's weights. Where few large pages decide, narrow weights choose the same ones again. For
SGD with momentum over twelve layers at half the demand (98 gaps), eight searches with this spread found the optimum
within 77 to 551 rounds. With weights from 0.6 to 1.4, one of eight found it within 1,500."""

_THRIFTS = (0.5, 1.0, 2.0)
"""The thrifts of a round (see ``_Choice.fill``); one of these, by chance."""

_AS_GOOD_AS_FREE = 1000.0
"""How much more a gap is worth whose content has been paid for than one that is to be paid for."""

_MIN_S = 1e-9
"""What a recomputation costs at least: clocks may have seen no time, and bytes are divided by costs."""


def choose(trace: Trace, limit: int) -> list[Gap]:
    """Gaps of ``trace`` in which to have their pages away, so that ``limit`` holds as far as it can.

    Where most is over the limit, the page is taken whose absence helps most operations for its bytes. Then those that
    turned out to be needless are given back, the dearest first. After that, in each of some rounds, a part of the
    choice is undone and chosen anew with other weights; the result is kept if it is no dearer. Deterministic. Pages
    that the step does not use are away as far as that helps, before any other is.

    Args:
        trace: the step.
        limit: bytes that its pages may occupy on the device.
    """
    room = Headroom(trace, limit)
    if room.worst is None:
        return []
    gaps = gaps_of(trace)
    unused = [gap for gap in gaps if gap.is_whole_step]
    beside = room.without(unused)
    if beside.worst is None:
        choice = _moves(room, unused)
        choice.fill(np.ones(len(unused)))
        return choice.gaps_chosen
    return [*unused, *_searched(beside, [gap for gap in gaps if not gap.is_whole_step])]


def _searched(room: Headroom, gaps: list[Gap]) -> list[Gap]:
    """Those of ``gaps`` that the search of ``choose`` ends with; all where each is needed."""
    left = room.without(gaps)
    if not any(left.is_needless(gap) for gap in gaps):
        return gaps
    choice = _moves(room, gaps)
    choice.fill(np.ones(len(gaps)))
    best = choice.chosen.copy()
    best_price = choice.price
    dice = np.random.default_rng(0)
    rounds = min(_ROUNDS_FOR_A_GAP * len(gaps), _GAPS_IN_ALL // len(gaps))
    for _ in range(max(_MIN_ROUNDS, rounds)):
        taken = np.flatnonzero(choice.chosen)
        prefers_dear = dice.random() < 0.5  # many small pages cannot be tried as often as a few large ones are worth it
        order = dice.uniform(0.5, 1.5, len(taken))
        if prefers_dear:
            order = order * choice.costs[taken]
        count = max(1, int(dice.choice(_SHARES) * len(taken)))
        choice.give_back(taken[np.argsort(-order)[:count]])
        choice.fill(dice.lognormal(0, _SPREAD, len(gaps)), thrift=dice.choice(_THRIFTS))
        if choice.price <= best_price:
            best = choice.chosen.copy()
            best_price = choice.price
        else:
            choice.become(best)
    return choice.gaps_chosen


def _moves(room: Headroom, gaps: list[Gap]) -> "_Choice":
    """A choice among ``gaps`` that costs what it moves."""
    return _Choice(room, gaps, [gap.nbytes for gap in gaps], [gap.version for gap in gaps])


def choose_dropped(room: Headroom, seconds: Mapping[Gap, float]) -> list[Gap]:
    """Gaps in which to have their pages dropped, so that the limit holds, and recomputing them takes little time.

    Args:
        room: the headroom without the pages that move; what is chosen is taken from it.
        seconds: for each gap to choose from, the time to recompute its page.
    """
    costs = [max(cost_s, _MIN_S) for cost_s in seconds.values()]
    choice = _Choice(room, list(seconds), costs, range(len(seconds)))
    choice.fill(np.ones(len(choice.gaps)))
    return choice.gaps_chosen


def moved_out(chosen: list[Gap]) -> int:
    """Bytes that are copied from the device in each step."""
    return sum({gap.version: gap.nbytes for gap in chosen if not gap.is_copied}.values())


class _Choice:
    """A choice among gaps, which are known by their index in ``gaps``.

    Args:
        room: the headroom; what is chosen is taken from it.
        gaps: to choose from.
        costs: of each gap.
        contents: for each gap, a number of what its page holds. Gaps of one content pay once, and nothing if it has
            been copied in an earlier step.

    Attributes:
        gaps: to choose from.
        costs: of each gap.
        chosen: for each gap, whether its page is away.
    """

    def __init__(self, room: Headroom, gaps: list[Gap], costs: Sequence[float], contents: Sequence[int]) -> None:
        self.gaps = gaps
        self.costs = np.array(costs, dtype=np.float64)
        self.chosen = np.zeros(len(gaps), dtype=bool)
        self._room = room
        self._nbytes = np.array([gap.nbytes for gap in gaps], dtype=np.int64)
        self._is_copied = np.array([gap.is_copied for gap in gaps], dtype=bool)
        numbers = {content: n for n, content in enumerate(dict.fromkeys(contents))}
        self._content = np.array([numbers[content] for content in contents], dtype=np.int64)
        self._paid = np.zeros(len(numbers), dtype=np.int64)  # for each content, how many of its gaps are chosen
        # Every gap has two spans here, so that they fit an array; (1, 0) stands for none.
        spans = np.array([(*gap.spans, (1, 0))[:2] for gap in gaps], dtype=np.int64).reshape(-1, 2, 2)
        self._first = spans[:, :, 0].T.copy()
        self._last = spans[:, :, 1].T.copy()

    @property
    def gaps_chosen(self) -> list[Gap]:
        """Those that are chosen."""
        return [self.gaps[number] for number in np.flatnonzero(self.chosen)]

    @property
    def price(self) -> float:
        """What the choice costs. Each content is paid for once."""
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
        """Choose exactly the gaps that are ``chosen`` there."""
        self.give_back(np.flatnonzero(self.chosen & ~chosen))
        self.take(np.flatnonzero(chosen & ~self.chosen))

    def fill(self, weights: npt.NDArray[np.float64], thrift: float = 1.0) -> None:
        """Choose more until the limit holds, then fewer until each is needed.

        Args:
            weights: of each gap, by which its merit is multiplied.
            thrift: how much it counts against a page that it is larger than need be.
        """
        while (worst := self._room.worst) is not None:
            position, excess = worst
            is_there = ((self._first <= position) & (position <= self._last)).any(axis=0)
            waiting = np.flatnonzero(is_there & ~self.chosen)
            if not len(waiting):
                break
            merit = self._merit(waiting, excess, thrift) * weights[waiting]
            self.take((int(waiting[np.argmax(merit)]),))
        taken = np.flatnonzero(self.chosen)
        is_free = self._is_copied[taken] | (self._paid[self._content[taken]] > 1)
        for number in taken[np.lexsort((taken, -self.costs[taken], is_free))]:
            if self._room.is_needless(self.gaps[number]):
                self.give_back((number,))

    def _merit(self, numbers: npt.NDArray[np.int64], excess: int, thrift: float) -> npt.NDArray[np.float64]:
        """How good a choice each of these gaps would be: the operations over the limit that it helps, times bytes,
        divided by cost. It is less for pages larger than ``excess``. Once a content is paid for, the other gaps of it
        are free.
        """
        over = self._room.operations_over
        helped = (over[self._last + 1] - over[self._first]).clip(0).sum(axis=0).astype(np.float64)
        helped_by_content = np.bincount(
            self._content, weights=np.where(self.chosen, 0.0, helped), minlength=len(self._paid)
        )
        content = self._content[numbers]
        nbytes = self._nbytes[numbers]
        is_free = self._is_copied[numbers] | (self._paid[content] > 0)
        total = np.where(is_free, _AS_GOOD_AS_FREE * helped[numbers], helped_by_content[content])
        return np.asarray(total * nbytes / self.costs[numbers] * np.minimum(1.0, excess / nbytes) ** thrift)
