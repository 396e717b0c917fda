"""Answers to `torch-lms plan`: a forecast for a step as asked for, or for the largest that fits."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from torch_lms.cli.plan_search import largest_that_fits
from torch_lms.cli.plan_target import Setting, Target, Traced, own_value, trace
from torch_lms.errors import LmsError, UsageError
from torch_lms.machine import Calibration, Machine
from torch_lms.planner import Forecast, forecast, may_fit, within

CHECKPOINT = "checkpoint"
"""A policy that changes the step itself: blocks are checkpointed, and nothing moves."""

_POWERS_ABOVE = 4
"""That are tried to begin with where a target refuses what is asked for and its own: both may be too small, or odd."""

_MOST = 1 << 40
"""What no size or batch exceeds: a step that fits with it needs the same with any."""


@dataclass(frozen=True)
class Question:
    """About one target.

    Attributes:
        name: of the target.
        target: itself.
        setting: of the step.
        policy: one of the planner's, or ``CHECKPOINT``.
        limit: bytes, or None for what the device has.
    """

    name: str
    target: Target
    setting: Setting
    policy: str
    limit: int | None

    @property
    def planners_policy(self) -> str:
        """That of the planner."""
        return "none" if self.policy == CHECKPOINT else self.policy

    def traced(self) -> Traced:
        """The step."""
        return trace(self.name, self.target, self.setting)


@dataclass(frozen=True)
class Largest:
    """How large ``what`` ("size" or "batch") can be."""

    what: str
    without: int
    with_lms: int

    @property
    def factor(self) -> float | None:
        """With LMS over without."""
        return self.with_lms / self.without if self.without else None


@dataclass(frozen=True)
class Lasting:
    """How long a training takes; None if it does not fit.

    Attributes:
        epoch_s: seconds of an epoch.
        total_h: hours of all.
    """

    epoch_s: float | None
    total_h: float | None


@dataclass(frozen=True)
class Answer:
    """A forecast, and what it is of.

    Attributes:
        setting: as asked for, or at the largest that fits.
        forecast: for one machine.
        traced: the step.
        largest: if that was asked for.
        lasting: the same.
    """

    setting: Setting
    forecast: Forecast
    traced: Traced
    largest: Largest | None = None
    lasting: Lasting | None = None

    def of_epochs(self, epochs: int, samples: int) -> "Answer":
        """The same, with the hours in all."""
        steps, step_s = samples / (self.traced.samples * self.setting.gpus), self.forecast.step_s
        if step_s is None:
            return replace(self, lasting=Lasting(None, None))
        return replace(self, lasting=Lasting(steps * step_s, epochs * steps * step_s / 3600))

    def plain(self) -> dict[str, Any]:
        """For programs."""
        found = {f.name: getattr(self.forecast, f.name) for f in fields(Forecast) if f.name != "timeline"}
        if self.largest is not None:
            found |= {"max_without": self.largest.without, "max_with": self.largest.with_lms}
            found |= {"factor": self.largest.factor}
        if self.lasting is not None:
            found |= {"epoch_s": self.lasting.epoch_s, "total_h": self.lasting.total_h}
        return found


def answer(question: Question, machine: Machine, calibration: Calibration) -> Answer:
    """For one machine."""
    return _answer(question, question.traced(), machine, calibration)


def _answer(question: Question, traced: Traced, machine: Machine, calibration: Calibration) -> Answer:
    found = forecast(
        traced.trace,
        machine,
        calibration,
        items=traced.items,
        policy=question.planners_policy,
        gpus=question.setting.gpus,
        limit=question.limit,
        gradient_bytes=traced.gradient_bytes,
    )
    return Answer(question.setting, replace(found, policy=question.policy), traced)


def largest(question: Question, what: str, machine: Machine, calibration: Calibration) -> Answer:
    """The largest "size" or "batch" that fits without LMS, and with it; the forecast is for the latter.

    Where the policy moves nothing, both are the same.

    Raises:
        UsageError: not even the least fits, whatever does, or the target takes no such keyword.
    """
    search = _Search(question, what)

    def may(value: int, policy: str) -> bool:
        traced, gpus = search.traced(value), question.setting.gpus
        limit, gradient_bytes = question.limit, traced.gradient_bytes
        return may_fit(traced.trace, machine, policy=policy, gpus=gpus, limit=limit, gradient_bytes=gradient_bytes)

    @cache
    def told(value: int) -> Answer:
        return _answer(search.at(value), search.traced(value), machine, calibration)

    def paged(value: int) -> bool:
        return may(value, question.planners_policy)

    def simulated(value: int) -> bool:
        return paged(value) and told(value).forecast.fits_with

    without = search.largest(lambda value: may(value, "none"))
    with_lms = search.largest(paged, beginning=without)
    if with_lms and not simulated(with_lms):  # takes seconds: asked of one value, as long as that fits
        with_lms = search.largest(simulated, beginning=without)
    if not with_lms:
        raise UsageError(
            f"{question.name} does not fit on {machine.name} at any {what}: even {search.least} needs more than "
            f"{machine.accelerator.name} has"
        )
    return replace(told(with_lms), largest=Largest(what, without, with_lms))


def largest_within(question: Question, what: str, nbytes: int) -> Largest:
    """The largest "size" or "batch" of a step that ``nbytes`` of device memory hold, below which there is room enough.

    Raises:
        UsageError: whatever there is fits, or the target takes no such keyword, or needs one to begin with.
    """
    search = _Search(question, what)
    without = search.largest(lambda value: within(search.traced(value).trace, nbytes)[1].stock <= nbytes)
    with_lms = search.largest(lambda value: within(search.traced(value).trace, nbytes)[1].largest_op <= nbytes, without)
    return Largest(what, without, with_lms)


class _Search:
    """By size or batch. Every step is traced once.

    Some values the target refuses: what is too small for it, or too large, and what is no multiple of its granule.
    """

    def __init__(self, question: Question, what: str) -> None:
        self._question, self._what = question, what
        self._known: dict[int, Traced | None] = {}
        gpus, bounds = question.setting.gpus, getattr(question.target, "bounds", None)
        self._granule = gpus if what == "batch" else 1
        if bounds is not None and what == "size":
            self._granule = bounds(question.target.chosen(question.setting.options)).multiple  # type: ignore[attr-defined]
        self._start = self._first_taken()
        if bounds is None:
            self._granule = self._found_granule()

    def at(self, value: int) -> Question:
        """The question for that size or batch."""
        setting = self._question.setting
        changed = replace(setting, size=value) if self._what == "size" else replace(setting, batch=value)
        return replace(self._question, setting=changed)

    def traced(self, value: int) -> Traced:
        """The step with a value that the target takes."""
        if self._known.get(value) is None:
            self._known[value] = self.at(value).traced()
        found = self._known[value]
        assert found is not None
        return found

    @property
    def least(self) -> int:
        """Of what was tried and not refused."""
        return min(value for value, traced in self._known.items() if traced is not None)

    def largest(self, fits: Callable[[int], bool], beginning: int = 0) -> int:
        """The largest value that ``fits``, 0 if none does; it is looked for around ``beginning`` first."""

        def is_not_too_large(value: int) -> bool:
            if value > _MOST:
                raise UsageError(
                    f"--max {self._what} expects a step that needs more with a larger {self._what}; that of "
                    f"{self._question.name} fits with {value // 2}: ask without --max, or of what makes it larger"
                )
            return fits(value) if self._takes(value) else value < self._start

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
        """What is asked for, as a multiple of the granule; if the target refuses that, its own, else a power of two."""
        asked, own = getattr(self._question.setting, self._what), own_value(self._question.target, self._what)
        if own is not None and self._what == "batch":
            own *= self._question.setting.gpus
        if asked is None and own is None:
            raise UsageError(
                f"--max {self._what} needs a --{self._what} to begin with: {self._question.name} has none of its own"
            )
        given = [max(self._granule, value // self._granule * self._granule) for value in (asked, own) if value]
        power = self._granule << (given[0] // self._granule).bit_length()
        above = [power << n for n in range(_POWERS_ABOVE)]
        below = [power >> n for n in range(1, power.bit_length())] if own is None else []
        taken = next((value for value in (*given, *above, *below) if self._takes(value)), given[0])
        self.traced(taken)  # if nothing is taken, the target says why
        return taken

    def _found_granule(self) -> int:
        """Of a target that does not tell: the least divisor of a value that it takes that leads to another."""
        start, base = self._start, self._granule
        divisors = (part * base for part in range(1, start // base + 1) if start // base % part == 0)
        return next((d for d in divisors if self._takes(start + d) or (start > d and self._takes(start - d))), start)
