"""All trials of one command: a point, a sweep, or a search; what is known already is not run again."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch_lms.bench.dimension import Dimension
from torch_lms.bench.expected import Expected
from torch_lms.bench.process import perform
from torch_lms.bench.results import Results
from torch_lms.bench.samples import Reading
from torch_lms.bench.search import Found, expected_largest, largest
from torch_lms.bench.trial import COMPLETED, REFUSED, Asked, Point, Trial, WarmUp, quartiles
from torch_lms.bench.ways import STOCK, UNLIMITED, refusal
from torch_lms.errors import LmsError, UsageError
from torch_lms.targets import Setting, Target, own_value


@dataclass(frozen=True)
class Bench:
    """What is measured.

    Attributes:
        name: of the target.
        target: it.
        setting: how its step is asked for.
        ways: in the order in which they are tried.
        limit: of sessions, as for ``enable``; None: "auto".
        card_bytes: of the card that the machine is taken for; None: the machine's own memory.
        device: "cpu", or an accelerator's kind.
        steps: that count.
    """

    name: str
    target: Target
    setting: Setting
    ways: tuple[str, ...]
    limit: str | None
    card_bytes: int | None
    device: str
    steps: int


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
    """

    bench: Bench
    results: Results
    expected: Expected
    watcher: Watcher
    gpu: Callable[[], Reading] | None = None
    _run: Callable[[Asked, Callable[[], object], Callable[[], Reading] | None], dict[str, Any]] = field(default=perform)

    def sweep(self, dimension: Dimension | None, values: tuple[int, ...]) -> list[Trial]:
        """Every way at every value; at the setting's own point if there is no dimension."""
        settings = [self.bench.setting]
        if dimension is not None:
            settings = [dimension.at(self.bench.setting, value) for value in values]
        return [self.trial(way, setting, dimension) for setting in settings for way in self._ordered_ways()]

    def find(self, dimension: Dimension) -> list[Found]:
        """The largest value of ``dimension`` at which each way trains.

        Raises:
            UsageError: it is not known where to begin, or the target takes no value.
        """
        return [self._largest(dimension, way, self._start(dimension)) for way in self._ordered_ways()]

    def trial(self, way: str, setting: Setting, dimension: Dimension | None) -> Trial:
        """One trial, or what is known of it."""
        point = point_of(self.bench.target, setting, dimension)
        known = self.results.find(way, point)
        if known is not None:
            self.watcher.ended(known, 0.0, True)
            return known
        began_s = time.monotonic()
        self.watcher.begins(way, point)
        found = self._made(way, setting, point)
        self.results.add(found)
        self.watcher.ended(found, time.monotonic() - began_s, False)
        return found

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

    def _largest(self, dimension: Dimension, way: str, start: int) -> Found:
        def at(value: int) -> Setting:
            return dimension.at(self.bench.setting, value)

        def takes(value: int) -> bool:
            return self.expected.takes(at(value))

        def fits(value: int) -> bool:
            return self.expected.fits(at(value), way)

        told = 0
        if not refusal(way, self.bench.device):
            told = expected_largest(fits, takes, dimension.granule, start)
        return largest(way, lambda value: self.trial(way, at(value), dimension), takes, dimension.granule, told, start)

    def _made(self, way: str, setting: Setting, point: Point) -> Trial:
        try:
            forecast = self.expected.forecast(setting, way)
            traced = self.expected.traced(setting, way)
        except LmsError as error:
            return Trial(way, point, REFUSED, " ".join(str(error).split()))
        nothing = Trial(way, point, REFUSED, refusal(way, self.bench.device), item=traced.item, forecast=forecast)
        if nothing.reason:
            return nothing
        card_bytes = None if way == UNLIMITED else self.bench.card_bytes
        asked = Asked(self.bench.name, setting, way, self.bench.device, self.bench.limit, card_bytes, self.bench.steps)
        told = self._run(asked, self.watcher.stepped, self.gpu)
        warm_up = WarmUp(**told.pop("warm_up", {}))
        found = replace(nothing, **told, warm_up=warm_up)
        return self._compared(found, traced.items) if found.outcome == COMPLETED else found

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
    batch = setting.batch or own_value(target, "batch")
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
        "ranks": 1,
        "limit": bench.limit,
        "as_card": bench.card_bytes,
        "steps": bench.steps,
    }
