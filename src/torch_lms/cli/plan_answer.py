"""Answers to `torch-lms plan`: a forecast for a step as asked for, or for the largest that fits."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import log
from typing import Any

from torch_lms.cli.plan_target import Setting, Target, Traced, trace
from torch_lms.errors import UsageError
from torch_lms.machine import Calibration, Machine
from torch_lms.planner import Forecast, Need, below_bytes, forecast, within
from torch_lms.trace import demand_curve

CHECKPOINT = "checkpoint"
"""A policy that changes the step itself: blocks are checkpointed, and nothing moves."""

_PRECISION = 0.01
"""Of the largest size or batch, where finer steps are possible."""

_MOST_TRIES = 40

_LEAST_POWER = 0.25
"""With which a step grows."""

_JUST_ABOVE = 1.004
"""Guesses are tried from above and below in turn: one that fits is followed by one that is a little larger."""


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
class Answer:
    """A forecast, and what it is of.

    Attributes:
        setting: as asked for, or at the largest that fits.
        forecast: for one machine.
        traced: the step.
        largest: if that was asked for.
        epoch_s: seconds of an epoch, if its samples are known.
        total_h: hours of all epochs.
    """

    setting: Setting
    forecast: Forecast
    traced: Traced
    largest: Largest | None = None
    epoch_s: float | None = None
    total_h: float | None = None

    def lasting(self, epochs: int, samples: int) -> "Answer":
        """The same, with the hours in all."""
        steps = samples / (self.traced.samples * self.setting.gpus)
        epoch_s = steps * self.forecast.step_s
        return replace(self, epoch_s=epoch_s, total_h=epochs * epoch_s / 3600)

    def plain(self) -> dict[str, Any]:
        """For programs."""
        found = {f.name: getattr(self.forecast, f.name) for f in fields(Forecast) if f.name != "timeline"}
        if self.largest is not None:
            found |= {"max_without": self.largest.without, "max_with": self.largest.with_lms}
            found |= {"factor": self.largest.factor}
        if self.epoch_s is not None:
            found |= {"epoch_s": self.epoch_s, "total_h": self.total_h}
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
        policy="none" if question.policy == CHECKPOINT else question.policy,
        gpus=question.setting.gpus,
        limit=question.limit,
        gradient_bytes=traced.gradient_bytes,
    )
    return Answer(question.setting, replace(found, policy=question.policy), traced)


def largest(question: Question, what: str, machine: Machine, calibration: Calibration) -> Answer:
    """The largest "size" or "batch" that fits without LMS, and with it; the forecast is for the latter.

    Raises:
        UsageError: not even the least fits, or the target takes no such keyword.
    """
    search = _Search(question, what)
    gpus, usable = question.setting.gpus, machine.accelerator.usable_bytes

    def need(traced: Traced) -> Need:
        return within(traced.trace, usable, traced.gradient_bytes if gpus > 1 else 0)[1]

    def stock(traced: Traced) -> float:
        return need(traced).stock / usable

    def paged(traced: Traced) -> float:
        """The largest operation on the device, and the rest below it."""
        away = max(0, demand_curve(traced.trace).demand_bytes - usable)
        return max(need(traced).largest_op / usable, away / max(1, below_bytes(machine, gpus)))

    without, with_lms = search.run(stock), search.run(paged)
    if not with_lms:
        raise UsageError(
            f"{question.name} does not fit on {machine.name} at any {what}: even {search.least} needs more than "
            f"{machine.accelerator.name} has"
        )
    at = search.at(with_lms)
    found = _answer(at, search.traced(with_lms), machine, calibration)
    return replace(found, largest=Largest(what, without, with_lms))


def largest_within(question: Question, what: str, nbytes: int) -> Largest:
    """The largest "size" or "batch" of a step that ``nbytes`` of device memory hold, below which there is room enough.

    Raises:
        UsageError: the target takes no such keyword, or needs one to begin with.
    """
    search = _Search(question, what)
    without = search.run(lambda traced: within(traced.trace, nbytes)[1].stock / nbytes)
    return Largest(what, without, search.run(lambda traced: within(traced.trace, nbytes)[1].largest_op / nbytes))


class _Search:
    """By size or batch. What a step needs grows with it; every step is traced once."""

    def __init__(self, question: Question, what: str) -> None:
        self._question, self._what = question, what
        own, gpus = getattr(question.target, what, None), question.setting.gpus
        start = getattr(question.setting, what) or (own and own * (gpus if what == "batch" else 1))
        if start is None:
            raise UsageError(f"--max {what} needs a --{what} to begin with: {question.name} has none of its own")
        self._start: int = start
        self._known: dict[int, Traced | None] = {start: self.at(start).traced()}  # refused here: refused for good
        self._step = gpus if what == "batch" else self._granule()
        self.least = self._step

    def _granule(self) -> int:
        """What sizes must be a multiple of, where the target says so."""
        bounds = getattr(self._question.target, "bounds", None)
        if bounds is None:
            return 1
        chosen = self._question.target.chosen(self._question.setting.options)  # type: ignore[attr-defined]
        return int(bounds(chosen).multiple)

    def at(self, value: int) -> Question:
        """The question for that size or batch."""
        setting = self._question.setting
        changed = replace(setting, size=value) if self._what == "size" else replace(setting, batch=value)
        return replace(self._question, setting=changed)

    def traced(self, value: int) -> Traced:
        found = self._try(value)
        assert found is not None
        return found

    def _try(self, value: int) -> Traced | None:
        """None: the target refuses so small a one."""
        if value not in self._known:
            try:
                self._known[value] = self.at(value).traced()
            except UsageError:
                self._known[value] = None
        return self._known[value]

    def run(self, share: Callable[[Traced], float]) -> int:
        """The largest multiple of the granule of whose step ``share`` is at most 1, to a hundredth; 0 if none is.

        Guesses by how the share grew between the two tries nearest to 1.
        """
        step = self._step
        tried: dict[int, float] = {}
        value = max(step, self._start // step * step)
        for _ in range(_MOST_TRIES):
            found = self._try(value)
            tried[value] = share(found) if found is not None else 0.0
            low = max((one for one, part in tried.items() if part <= 1), default=0)
            high = min((one for one, part in tried.items() if part > 1), default=0)
            least = max(step, int(low * _PRECISION) // step * step)
            if high and high - low <= least:
                return low
            value = max(low + least, self._guess(tried) // step * step)
            if high and value > high - least:
                value = max(low + step, (low + high) // 2 // step * step if high - low <= 2 * least else high - least)
        return max((one for one, part in tried.items() if part <= 1), default=0)

    def _guess(self, tried: dict[int, float]) -> int:
        """Where the share would be 1, if it grows as a power of the size or batch."""
        nearest = sorted((abs(log(part)), one) for one, part in tried.items() if part > 0)[:2]
        if not nearest:
            return 2 * max(tried)
        power = 2.0 if self._what == "size" else 1.0
        first = nearest[0][1]
        if len(nearest) == 2:
            second = nearest[1][1]
            power = max(_LEAST_POWER, log(tried[first] / tried[second]) / log(first / second))
        return int(max(1, first * tried[first] ** (-1 / power) * _JUST_ABOVE))
