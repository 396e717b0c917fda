"""The answer for the largest step that fits."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from torch_lms.answers.question import Question
from torch_lms.answers.search import largest_that_fits
from torch_lms.answers.step import Answer, Largest, answer_traced
from torch_lms.errors import LmsError, UsageError
from torch_lms.machine import Calibration, Machine
from torch_lms.planner import may_fit, need_of, within
from torch_lms.targets import Traced, own_value

_POWERS_ABOVE = 4
"""How many powers of two are tried to begin with, where a target refuses what is asked for and its own value.

Both may be too small, or odd.
"""

_MAX_VALUE = 1 << 40
"""No size or batch exceeds it: a step that fits with it needs the same memory with any."""


def largest(question: Question, what: str, machine: Machine, calibration: Calibration) -> Answer:
    """Find the largest "size" or "batch" that fits without LMS, and with it; the forecast is for the latter.

    Where the policy moves nothing, both are the same.

    Raises:
        UsageError: not even the least fits, whatever does, or the target takes no such keyword.
    """
    search = _Search(question, what)

    def fits(value: int, policy: str) -> bool:
        traced = search.traced(value)
        return may_fit(
            traced.trace,
            machine,
            policy=policy,
            gpus=question.setting.gpus,
            limit=question.limit,
            gradient_bytes=traced.gradient_bytes,
            exact=question.exact,
        )

    def fits_stock(value: int) -> bool:
        return fits(value, "none")

    def may_fit_paged(value: int) -> bool:
        return fits(value, question.planners_policy)

    @cache
    def simulated(value: int) -> Answer:
        return answer_traced(search.at(value), search.traced(value), machine, calibration)

    def fits_simulated(value: int) -> bool:
        return may_fit_paged(value) and simulated(value).forecast.fits_with

    without = search.largest(fits_stock)
    with_lms = search.largest(may_fit_paged, beginning=without)
    # A simulation takes seconds. So one value is simulated, and others only if that does not fit.
    if with_lms and not fits_simulated(with_lms):
        with_lms = search.largest(fits_simulated, beginning=without)
    if not with_lms:
        raise UsageError(
            f"{question.name} does not fit on {machine.name} at any {what}: even {search.least} needs more than "
            f"{machine.accelerator.name} has"
        )
    return replace(simulated(with_lms), largest=Largest(what, without, with_lms))


def largest_within(question: Question, what: str, nbytes: int) -> Largest:
    """Find the largest "size" or "batch" of a step that ``nbytes`` of device memory hold, without LMS and with it.

    The tiers below are taken to be large enough.

    Raises:
        UsageError: whatever there is fits, or the target takes no such keyword, or needs one to begin with.
    """
    search = _Search(question, what)

    def fits_stock(value: int) -> bool:
        return need_of(search.traced(value).trace).stock <= nbytes

    def fits_paged(value: int) -> bool:
        return within(search.traced(value).trace, nbytes, exact=question.exact)[1].largest_op <= nbytes

    without = search.largest(fits_stock)
    with_lms = search.largest(fits_paged, beginning=without)
    return Largest(what, without, with_lms)


class _Search:
    """A search over sizes or batches that traces every step once.

    The target refuses some values: those that are too small or too large for it, and those that are no multiple of its
    granule.
    """

    def __init__(self, question: Question, what: str) -> None:
        self._question = question
        self._what = what
        self._known: dict[int, Traced | None] = {}  # None: the target refuses that value
        bounds = getattr(question.target, "bounds", None)
        if what == "batch":
            self._granule = question.setting.gpus
        elif bounds is not None:
            options = question.target.chosen(question.setting.options)  # type: ignore[attr-defined]
            self._granule = bounds(options).multiple
        else:
            self._granule = 1
        self._start = self._first_taken()
        if bounds is None:
            self._granule = self._found_granule()

    def at(self, value: int) -> Question:
        """The question for that size or batch."""
        setting = self._question.setting
        changed = replace(setting, size=value) if self._what == "size" else replace(setting, batch=value)
        return replace(self._question, setting=changed)

    def traced(self, value: int) -> Traced:
        """The step with ``value``; raises the target's error if it refuses that."""
        found = self._known.get(value)
        if found is None:
            found = self.at(value).traced()
            self._known[value] = found
        return found

    @property
    def least(self) -> int:
        """The least value that was tried and not refused."""
        return min(value for value, traced in self._known.items() if traced is not None)

    def largest(self, fits: Callable[[int], bool], beginning: int = 0) -> int:
        """The largest value that ``fits``, 0 if none does; it is looked for around ``beginning`` first."""

        def is_not_too_large(value: int) -> bool:
            if value > _MAX_VALUE:
                raise UsageError(
                    f"--max {self._what} expects a step that needs more with a larger {self._what}; that of "
                    f"{self._question.name} fits with {value // 2}: ask without --max, or of what makes it larger"
                )
            if not self._takes(value):  # below the start it is too small for the target, above it too large
                return value < self._start
            return fits(value)

        found = largest_that_fits(is_not_too_large, self._granule, beginning or self._start)
        return found if found and self._takes(found) else 0

    def _takes(self, value: int) -> bool:
        if value not in self._known:
            try:
                self.traced(value)
            except LmsError:
                self._known[value] = None
        return self._known[value] is not None

    def _first_taken(self) -> int:
        """The value to begin with.

        What is asked for, as a multiple of the granule; if the target refuses that, its own; else a power of two.
        """
        setting = self._question.setting
        asked = setting.size if self._what == "size" else setting.batch
        own = own_value(self._question.target, self._what)
        if own is not None and self._what == "batch":
            own *= setting.gpus
        if asked is None and own is None:
            raise UsageError(
                f"--max {self._what} needs a --{self._what} to begin with: {self._question.name} has none of its own"
            )
        granule = self._granule
        given = [max(granule, value // granule * granule) for value in (asked, own) if value]
        power = granule << (given[0] // granule).bit_length()
        above = [power << n for n in range(_POWERS_ABOVE)]
        below = [power >> n for n in range(1, power.bit_length())] if own is None else []
        for value in (*given, *above, *below):
            if self._takes(value):
                return value
        self.traced(given[0])  # nothing is taken: the target says why
        return given[0]

    def _found_granule(self) -> int:
        """The granule of a target that does not tell: the least divisor of the start that leads to another value."""
        start = self._start
        multiples = start // self._granule
        for part in range(1, multiples + 1):
            if multiples % part:
                continue
            step = part * self._granule
            if self._takes(start + step) or (start > step and self._takes(start - step)):
                return step
        return start
