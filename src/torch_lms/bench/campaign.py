"""All trials of one command: a point, a sweep, or a search; what is known already is not run again."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from torch_lms.bench.dimension import Dimension, batch_of
from torch_lms.bench.expected import Expected
from torch_lms.bench.process import perform
from torch_lms.bench.results import Results
from torch_lms.bench.samples import Reading
from torch_lms.bench.search import Found, expected_largest, found_granule, largest
from torch_lms.bench.trial import COMPLETED, REFUSED, Asked, Point, Trial, WarmUp, quartiles
from torch_lms.bench.ways import NONE, STOCK, UNLIMITED, refusal
from torch_lms.errors import LmsError, UsageError
from torch_lms.machine import read_host_memory
from torch_lms.targets import Setting, Target, own_value


@dataclass(frozen=True)
class Bench:
    """What is measured.

    Attributes:
        name: of the target.
        target: it.
        setting: how its step is asked for; its ``gpus`` are the ranks.
        ways: in the order in which they are tried.
        limit: of sessions, as for ``enable``; None: "auto".
        card_bytes: of the card that the machine is taken for; None: the machine's own memory.
        device: "cpu", or an accelerator's kind.
        steps: that count.
        patience_s: see ``Asked``.
        exact: of sessions, as for ``enable``.
    """

    name: str
    target: Target
    setting: Setting
    ways: tuple[str, ...]
    limit: str | None
    card_bytes: int | None
    device: str
    steps: int
    patience_s: float | None = None
    exact: bool = True


Run = Callable[[Sequence[Asked], Callable[[], object], Callable[[], Reading] | None], list[dict[str, Any]]]
"""Makes trials: see ``process.perform``."""


class Watcher(Protocol):
    """Whoever wants to know how it goes."""

    def begins(self, way: str, point: Point) -> None:
        """A trial begins."""

    def stepped(self) -> None:
        """A step was taken."""

    def ended(self, trial: Trial, seconds: float, is_known: bool) -> None:
        """A trial ended; ``is_known``: it was made before."""


@dataclass
class Campaign:
    """Makes trials.

    Attributes:
        bench: what is measured.
        results: what is known.
        expected: forecasts.
        watcher: is told.
        gpu: gives a GPU's figures; None where there is none.
        run: makes trials.
        expected_largest: of each way whose largest was asked for, the forecast.
    """

    bench: Bench
    results: Results
    expected: Expected
    watcher: Watcher
    gpu: Callable[[], Reading] | None = None
    run: Run = field(default=perform)
    expected_largest: dict[str, int] = field(default_factory=dict)

    def sweep(self, dimension: Dimension | None, values: tuple[int, ...]) -> list[Trial]:
        """Every way at every value; at the setting's own point if there is no dimension."""
        settings = [self.bench.setting]
        if dimension is not None:
            settings = [dimension.at(self.bench.setting, value) for value in values]
        self._learn(settings[0], dimension)
        trials: list[Trial] = []
        for setting in settings:
            for ways in self._together(setting):
                trials += self.trials(ways, setting, dimension)
        return trials

    def find(self, dimension: Dimension) -> list[Found]:
        """The largest value of ``dimension`` at which each way trains.

        Raises:
            UsageError: it is not known where to begin, or the target takes no value.
        """
        start = self._start(dimension)
        granule = found_granule(partial(self._takes, dimension), dimension.granule, start)
        near = self._expected(dimension, NONE, granule, start) or start
        self._learn(dimension.at(self.bench.setting, near), dimension)
        return [self._largest(dimension, way, granule, start) for way in self._ordered_ways()]

    def trials(self, ways: Sequence[str], setting: Setting, dimension: Dimension | None) -> list[Trial]:
        """A trial of each way, side by side, or what is known of it."""
        point = point_of(self.bench.target, setting, dimension)
        known = {way: self.results.find(way, point) for way in ways}
        for trial in known.values():
            if trial is not None:
                self.watcher.ended(trial, 0.0, True)
        missing = [way for way in ways if known[way] is None]
        if missing:
            self._make(missing, setting, point)
        return [trial for way in ways if (trial := self.results.find(way, point)) is not None]

    def _learn(self, setting: Setting, dimension: Dimension | None) -> None:
        """Measure what a process needs beside its step, where a card counts it: on the CPU (docs/bench.md)."""
        bench = self.bench
        if bench.device != "cpu" or bench.card_bytes is None:
            return
        known = [trial.forecast["beside_bytes"] for trial in self.results.trials if "beside_bytes" in trial.forecast]
        if known:
            self.expected.beside_bytes = known[0]
            return
        self.watcher.begins("what a process needs beside its step", point_of(bench.target, setting, dimension))
        _, free_bytes = read_host_memory().binding()
        asked = replace(self._asked(NONE, setting), card_bytes=free_bytes // setting.gpus, steps=1)
        (told,) = self.run([asked], self.watcher.stepped, None)
        if told["outcome"] == COMPLETED:  # else all trials tell why not
            self.expected.learn(setting, told["peak_device_bytes"])

    def _ordered_ways(self) -> list[str]:
        """Stock PyTorch first: the others are compared with it."""
        return sorted(self.bench.ways, key=lambda way: way not in STOCK)

    def _start(self, dimension: Dimension) -> int:
        own = dimension.own
        if own is None:
            raise UsageError(
                f"--find {dimension.name} needs a value to begin with, which {self.bench.name} has not: give it with "
                f"--{dimension.name} or --set {dimension.keyword}=VALUE"
            )
        granule = dimension.granule
        start = max(granule, own // granule * granule)
        self.expected.traced(dimension.at(self.bench.setting, start), UNLIMITED)  # the target says why if it does not
        return start

    def _takes(self, dimension: Dimension, value: int) -> bool:
        return self.expected.takes(dimension.at(self.bench.setting, value))

    def _expected(self, dimension: Dimension, way: str, granule: int, start: int) -> int:
        """The forecast of the largest."""

        def fits(value: int) -> bool:
            return self.expected.fits(dimension.at(self.bench.setting, value), way)

        return expected_largest(fits, partial(self._takes, dimension), granule, start)

    def _largest(self, dimension: Dimension, way: str, granule: int, start: int) -> Found:
        """The largest by running."""

        def run(value: int) -> Trial:
            return self.trials([way], dimension.at(self.bench.setting, value), dimension)[0]

        told = 0
        if not refusal(way, self.bench.device):
            told = self.expected_largest[way] = self._expected(dimension, way, granule, start)
        return largest(way, run, partial(self._takes, dimension), granule, told, start)

    def _together(self, setting: Setting) -> list[list[str]]:
        """The ways by turns: those that have room beside each other take steps in turn, the others are alone.

        On an accelerator a process that waits would take memory from the others.
        """
        ways = self._ordered_ways()
        if self.bench.device == "cpu" and self.expected.fit_together(setting, ways):
            return [ways]
        return [[way] for way in ways]

    def _make(self, ways: Sequence[str], setting: Setting, point: Point) -> None:
        """Make trials, and keep what came of them."""
        began_s = time.monotonic()
        self.watcher.begins(", ".join(ways), point)
        prepared = [self._prepared(way, setting, point) for way in ways]
        asked = [self._asked(trial.way, setting) for trial in prepared if not trial.reason]
        told = iter(self.run(asked, self.watcher.stepped, self.gpu) if asked else [])
        for trial in prepared:
            found = trial if trial.reason else self._finished(trial, next(told), setting)
            self.results.add(found)
            self.watcher.ended(found, (time.monotonic() - began_s) / len(prepared), False)

    def _prepared(self, way: str, setting: Setting, point: Point) -> Trial:
        """The trial before it is made; with a reason if it cannot be."""
        try:
            forecast = {**self.expected.forecast(setting, way), "largest": self.expected_largest.get(way)}
            item = self.expected.traced(setting, way).item
        except LmsError as error:
            return Trial(way, point, REFUSED, " ".join(str(error).split()), setting.gpus)
        why = refusal(way, self.bench.device)
        return Trial(way, point, REFUSED, why, setting.gpus, item=item, forecast=forecast)

    def _asked(self, way: str, setting: Setting) -> Asked:
        card_bytes = None if way == UNLIMITED else self.bench.card_bytes
        bench = self.bench
        return Asked(
            bench.name,
            setting,
            way,
            bench.device,
            bench.limit,
            card_bytes,
            bench.steps,
            patience_s=bench.patience_s,
            exact=bench.exact,
        )

    def _finished(self, trial: Trial, told: dict[str, Any], setting: Setting) -> Trial:
        warm_up = WarmUp(**told.pop("warm_up", {}))
        found = replace(trial, **told, warm_up=warm_up)
        if found.outcome != COMPLETED:
            return found
        return self._compared(found, found.ranks * self.expected.traced(setting, trial.way).items)

    def _compared(self, found: Trial, items: int) -> Trial:
        """``found`` with what is computed of its seconds."""
        median = statistics.median(found.step_s)
        with_rates = replace(
            found, step_s_median=median, step_s_quartiles=quartiles(tuple(found.step_s)), items_per_s=items / median
        )
        return replace(with_rates, overhead=self._overhead(with_rates))

    def _overhead(self, found: Trial) -> float | None:
        for way in reversed(STOCK):
            base = found if found.way == way else self.results.find(way, found.point)
            if base is not None and base.step_s_median and found.step_s_median:
                return found.step_s_median / base.step_s_median - 1
        return None


def point_of(target: Target, setting: Setting, dimension: Dimension | None) -> Point:
    """What is known of where a trial is."""
    size = setting.size or own_value(target, "size")
    batch = batch_of(target, setting)
    found = {name: value for name, value in (("size", size), ("batch", batch)) if value is not None}
    if dimension is not None and dimension.keyword not in ("size", "batch"):
        found[dimension.name] = int(setting.options[dimension.keyword])
    return found


def settings_of(bench: Bench, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for the header of the file."""
    setting = bench.setting
    return {
        **asked,
        "ways": list(bench.ways),
        "size": setting.size,
        "batch": setting.batch,
        "options": dict(setting.options),
        "optimizer": setting.optimizer,
        "amp": setting.amp,
        "dtype": setting.dtype,
        "lora": setting.lora,
        "inference": setting.is_inference,
        "device": bench.device,
        "ranks": setting.gpus,
        "limit": bench.limit,
        "as_card": bench.card_bytes,
        "steps": bench.steps,
        **({} if bench.exact else {"exact": False}),  # files of before --inexact are gone on with
    }
