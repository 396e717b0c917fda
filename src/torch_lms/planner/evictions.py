"""Which gaps to use: the fewest bytes out that keep the limit."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable

from torch_lms.planner.gaps import Gap, gaps_of
from torch_lms.planner.room import Room
from torch_lms.trace import Trace

_ROUNDS = 80
_AS_GOOD_AS_FREE = 1000.0


def choose(trace: Trace, limit: int, rounds: int = _ROUNDS) -> list[Gap]:
    """Gaps of ``trace`` in which to have their pages away, so that ``limit`` holds, as well as can be.

    Where most is over the limit, the page is taken whose absence helps at most operations for its bytes; then those
    that turn out to be needless come back, the dearest first. ``rounds`` times a part of the choice is undone, made
    again with other weights, and kept if it is cheaper. Deterministic.
    """
    choice, dice = _Choice(trace, limit), random.Random(0)
    choice.fill(lambda: 1.0)
    best, best_bytes = set(choice.chosen), choice.nbytes
    for _ in range(rounds if best else 0):
        share = dice.choice((0.02, 0.05, 0.1, 0.2))
        for gap in dice.sample(sorted(choice.chosen), max(1, int(share * len(choice.chosen)))):
            choice.give_back(gap)
        choice.fill(lambda: dice.uniform(0.6, 1.4))
        if choice.nbytes <= best_bytes:
            best, best_bytes = set(choice.chosen), choice.nbytes
        else:
            choice.become(best)
    return [choice.gaps[number] for number in sorted(best)]


def moved_out(chosen: list[Gap]) -> int:
    """Bytes that are copied out in each step."""
    return sum({gap.version: gap.nbytes for gap in chosen if not gap.is_copied}.values())


class _Choice:
    """Gaps by their index in ``gaps``, some of them chosen.

    Attributes:
        chosen: those in which their pages are away.
    """

    def __init__(self, trace: Trace, limit: int) -> None:
        self.gaps = gaps_of(trace)
        self.chosen: set[int] = set()
        self._room = Room(trace, limit)
        self._copies: Counter[int] = Counter()
        self._of_version: defaultdict[int, list[int]] = defaultdict(list)
        self._at: list[list[int]] = [[] for _ in trace.ops]
        for number, gap in enumerate(self.gaps):
            self._of_version[gap.version].append(number)
            for first, last in gap.spans:
                for position in range(first, last + 1):
                    self._at[position].append(number)

    @property
    def nbytes(self) -> int:
        """That the choice moves out."""
        return moved_out([self.gaps[number] for number in self.chosen])

    def take(self, number: int) -> None:
        """Choose a gap."""
        self.chosen.add(number)
        self._copies[self.gaps[number].version] += 1
        self._room.take(self.gaps[number])

    def give_back(self, number: int) -> None:
        """Undo ``take``."""
        self.chosen.remove(number)
        self._copies[self.gaps[number].version] -= 1
        self._room.give_back(self.gaps[number])

    def become(self, chosen: set[int]) -> None:
        """Choose exactly these."""
        for number in self.chosen - chosen:
            self.give_back(number)
        for number in chosen - self.chosen:
            self.take(number)

    def fill(self, weight: Callable[[], float]) -> None:
        """Choose more until the limit holds, then fewer until each is needed."""
        while (worst := self._room.worst) is not None:
            position, excess = worst
            waiting = [number for number in self._at[position] if number not in self.chosen]
            self.take(max(waiting, key=lambda number: self._merit(number, excess) * weight()))
        for number in sorted(self.chosen, key=self._by_price):
            if self._room.is_needless(self.gaps[number]):
                self.give_back(number)

    def _merit(self, number: int, excess: int) -> float:
        gap = self.gaps[number]
        if self._is_free(gap):
            helped = _AS_GOOD_AS_FREE * self._room.helped(gap)
        else:  # once its copy is paid for, the other gaps of the same content are free
            others = (self.gaps[other] for other in self._of_version[gap.version] if other not in self.chosen)
            helped = float(sum(self._room.helped(other) for other in others))
        return helped * min(1.0, excess / gap.nbytes)

    def _is_free(self, gap: Gap) -> bool:
        return gap.is_copied or self._copies[gap.version] > 0

    def _by_price(self, number: int) -> tuple[bool, int, int]:
        gap = self.gaps[number]
        return gap.is_copied or self._copies[gap.version] > 1, -gap.nbytes, number
