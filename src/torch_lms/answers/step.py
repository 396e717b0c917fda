"""The answer for one step on one machine."""

from dataclasses import dataclass, fields, replace
from typing import Any

from torch_lms.answers.question import Question
from torch_lms.machine import Calibration, Machine
from torch_lms.planner import Forecast, forecast
from torch_lms.targets import Setting, Traced


@dataclass(frozen=True)
class Largest:
    """How large ``what`` ("size" or "batch") can be, without LMS and with it. 0: nothing fits."""

    what: str
    without: int
    with_lms: int

    @property
    def factor(self) -> float | None:
        """How many times larger it can be with LMS; None if nothing fits without."""
        return self.with_lms / self.without if self.without else None


@dataclass(frozen=True)
class Lasting:
    """How long a training takes; None if it does not fit.

    Attributes:
        epoch_s: seconds of an epoch.
        total_h: hours of all epochs.
    """

    epoch_s: float | None
    total_h: float | None


@dataclass(frozen=True)
class Answer:
    """A forecast, and the step that it is of.

    Attributes:
        setting: as asked for, or at the largest that fits.
        forecast: for one machine.
        traced: the step.
        largest: how large the step can be, if that was asked for.
        lasting: how long a training takes, if that was asked for.
    """

    setting: Setting
    forecast: Forecast
    traced: Traced
    largest: Largest | None = None
    lasting: Lasting | None = None

    def of_epochs(self, epochs: int, samples: int) -> "Answer":
        """The same answer, with how long ``epochs`` over ``samples`` take."""
        step_s = self.forecast.step_s
        if step_s is None:
            return replace(self, lasting=Lasting(None, None))
        steps = samples / (self.traced.samples * self.setting.gpus)
        return replace(self, lasting=Lasting(steps * step_s, epochs * steps * step_s / 3600))

    def plain(self) -> dict[str, Any]:
        """The answer as plain values, for programs. The timeline is left to ``--timeline``."""
        found = {f.name: getattr(self.forecast, f.name) for f in fields(Forecast) if f.name != "timeline"}
        if self.largest is not None:
            found["max_without"] = self.largest.without
            found["max_with"] = self.largest.with_lms
            found["factor"] = self.largest.factor
        if self.lasting is not None:
            found["epoch_s"] = self.lasting.epoch_s
            found["total_h"] = self.lasting.total_h
        return found


def answer(question: Question, machine: Machine, calibration: Calibration) -> Answer:
    """Trace the step and simulate it on one machine."""
    return answer_traced(question, question.traced(), machine, calibration)


def answer_traced(question: Question, traced: Traced, machine: Machine, calibration: Calibration) -> Answer:
    """As ``answer``, of a step that has been traced."""
    found = forecast(
        traced.trace,
        machine,
        calibration,
        items=traced.items,
        policy=question.planners_policy,
        gpus=question.setting.gpus,
        limit=question.limit,
        gradient_bytes=traced.gradient_bytes,
        interposer=question.interposer,
        tune=question.tune,
        samples=traced.samples,
        host_part=question.host_part,
        exact=question.exact,
    )
    return Answer(question.setting, replace(found, policy=question.policy), traced)
