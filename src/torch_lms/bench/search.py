"""The largest that trains, found by running: the forecast says where to begin, so that few trials are needed."""

from collections.abc import Callable
from dataclasses import dataclass

from torch_lms.answers.search import largest_that_fits
from torch_lms.bench.trial import REFUSED, Trial

NEAR = 0.04
"""The largest is known when what is larger by this share does not train, or the next granule."""

_MAX_TRIALS = 12


@dataclass(frozen=True)
class Found:
    """The largest value at which one way trains. 0: none does.

    Attributes:
        way: of ``ways.WAYS``.
        expected: the forecast.
        largest: that trained.
        fails: the least that was tried and did not train; None if time or trials ran out.
        reason: why it did not.
        trials: how many were made.
    """

    way: str
    expected: int
    largest: int
    fails: int | None
    reason: str
    trials: int


def found_granule(takes: Callable[[int], bool], granule: int, start: int) -> int:
    """The granule of a target that may take fewer values than multiples of ``granule``.

    It is the least divisor of ``start``, which the target takes, that leads to another value that it takes.
    """
    multiples = start // granule
    for part in range(1, multiples + 1):
        step = part * granule
        if multiples % part == 0 and (takes(start + step) or (start > step and takes(start - step))):
            return step
    return start


def expected_largest(fits: Callable[[int], bool], takes: Callable[[int], bool], granule: int, start: int) -> int:
    """The largest multiple of ``granule`` that is expected to train; 0 if none is.

    Args:
        fits: whether a value is expected to; asked only of values that the target takes.
        takes: whether the target takes a value: it may refuse what is too small, too large, or odd.
        granule: of the values.
        start: one that the target takes.
    """

    def is_not_too_large(value: int) -> bool:
        if not takes(value):
            return value < start
        return fits(value)

    found = largest_that_fits(is_not_too_large, granule, start)
    return found if found and takes(found) else 0


def largest(
    way: str, run: Callable[[int], Trial], takes: Callable[[int], bool], granule: int, expected: int, start: int
) -> Found:
    """Run trials around ``expected`` until it is known, to ``NEAR``, which is the largest that trains.

    Args:
        way: of ``ways.WAYS``.
        run: makes a trial.
        takes: whether the target takes a value.
        granule: of the values.
        expected: the forecast; 0: nothing is expected to train.
        start: a value that the target takes, to begin with where nothing is expected to train.
    """
    hunt = _Hunt(run, takes, granule)
    first = expected or start
    if hunt.trains(first):
        hunt.grow(first)
    elif hunt.is_refused:
        return Found(way, expected, 0, first, hunt.reason, hunt.trials)
    else:
        hunt.shrink(first)
    hunt.close_in()
    return Found(way, expected, hunt.low, hunt.high, hunt.reason, hunt.trials)


class _Hunt:
    """What is known so far: ``low`` trains, ``high`` does not."""

    def __init__(self, run: Callable[[int], Trial], takes: Callable[[int], bool], granule: int) -> None:
        self._run = run
        self._takes = takes
        self._granule = granule
        self.low = 0
        self.high: int | None = None
        self.reason = ""
        self.trials = 0
        self.is_refused = False

    def trains(self, value: int) -> bool:
        """Try ``value``."""
        if not self._takes(value):
            self._fails(value, "the target does not take it")
            return False
        self.trials += 1
        trial = self._run(value)
        if trial.is_completed:
            self.low = max(self.low, value)
            return True
        self.is_refused = trial.outcome == REFUSED
        self._fails(value, trial.reason)
        return False

    def grow(self, value: int) -> None:
        """Go up from ``value``, ever faster, to one that does not train."""
        step = self._step(value)
        while self.trials < _MAX_TRIALS and self.trains(value + step):
            value += step
            step *= 2

    def shrink(self, value: int) -> None:
        """Go down from ``value``, ever faster, to one that trains."""
        step = self._step(value)
        while self.trials < _MAX_TRIALS and value > self._granule:
            smaller = max(self._granule, value - step)
            if not self._takes(smaller):  # too small for the target: what lies between is left
                if step == self._granule:
                    return
                step = max(1, step // self._granule // 2) * self._granule
                continue
            value = smaller
            if self.trains(value):
                return
            step *= 2

    def close_in(self) -> None:
        """Halve what lies between."""
        while self.low and self.high is not None and self.trials < _MAX_TRIALS:
            between = (self.high - self.low) // self._granule
            if between <= max(1, int(NEAR * self.low) // self._granule):
                return
            self.trains(self.low + between // 2 * self._granule)

    def _step(self, value: int) -> int:
        return max(1, int(NEAR * value) // self._granule) * self._granule

    def _fails(self, value: int, reason: str) -> None:
        if self.high is None or value < self.high:
            self.high = value
            self.reason = reason
