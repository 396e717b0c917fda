"""What ``plan`` says of a trial, before it is made."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torch_lms.answers import room_bytes
from torch_lms.bench.ways import CHECKPOINT, HOOKS, NONE, OURS, SAVE_ON_CPU, UNLIMITED, policy_of
from torch_lms.errors import LmsError
from torch_lms.machine import Calibration, Machine
from torch_lms.planner import Need, forecast, need_of, within
from torch_lms.planner.tflms import saved_gaps
from torch_lms.targets import Setting, Target, Traced, trace
from torch_lms.trace import Trace, demand_curve
from torch_lms.units import parse_bytes

_OF_PROCESS = 500 << 20
"""What a process holds beside its step: PyTorch itself, the most part."""


class Expected:
    """Forecasts for one target.

    Args:
        name: of the target.
        target: it.
        limit: of a session, as for ``enable``; None: "auto".
        card_bytes: of the card that the machine is taken for; None: the machine's own memory.
        device: "cpu", or an accelerator's kind.
        exact: of a session, as for ``enable``.

    Attributes:
        beside_bytes: what a process needs of the card beside its step, as ``learn`` has found it.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        limit: str | None,
        card_bytes: int | None,
        device: str,
        exact: bool = True,
    ) -> None:
        self._name = name
        self._target = target
        self._limit = limit
        self._card_bytes = card_bytes
        self._device = device
        self._exact = exact
        self._device_bytes = room_bytes(device)
        self.beside_bytes = 0
        self._machine = _this_machine()
        self._traced: dict[str, Traced] = {}

    def traced(self, setting: Setting, way: str) -> Traced:
        """The step, on tensors without bytes. Errors as of ``targets.trace``."""
        asked = replace(setting, checkpoints=way == CHECKPOINT)
        key = repr(asked)
        if key not in self._traced:
            self._traced[key] = trace(self._name, self._target, asked)
        return self._traced[key]

    def takes(self, setting: Setting) -> bool:
        """Whether the target takes that setting."""
        try:
            self.traced(setting, UNLIMITED)
        except LmsError:
            return False
        return True

    def learn(self, setting: Setting, peak_bytes: int) -> None:
        """A process of stock PyTorch had ``peak_bytes`` on the device, its step included.

        Errors as of ``traced``.
        """
        self.beside_bytes = max(0, peak_bytes - self._need(setting, NONE).stock)

    def fits(self, setting: Setting, way: str) -> bool:
        """Whether memory is expected to suffice. Errors as of ``traced``."""
        step = self.traced(setting, way).trace
        need = self._need(setting, way)
        room = self._room(setting, way) - self.beside_bytes
        if way in OURS:
            return need.largest_op <= room
        if way in (HOOKS, SAVE_ON_CPU):
            return max(_kept_bytes(step) + need.workspace, need.largest_op) <= room
        return need.stock <= room

    def fit_together(self, setting: Setting, ways: Sequence[str]) -> bool:
        """Whether processes of all ``ways`` have room beside each other, with as much to spare."""
        try:
            needed = sum(self._need(setting, way).stock + _OF_PROCESS for way in ways)
        except LmsError:
            return False
        return setting.gpus * needed < self._device_bytes / 2

    def forecast(self, setting: Setting, way: str) -> Mapping[str, Any]:
        """The forecast of a trial, as its line in the file has it.

        Seconds need a calibration of this machine, and are None without one.
        """
        traced = self.traced(setting, way)
        need = self._need(setting, way)
        found: dict[str, Any] = {
            "fits": self.fits(setting, way),
            "demand_bytes": demand_curve(traced.trace).demand_bytes,
            "largest_op_bytes": need.largest_op,
            "beside_bytes": self.beside_bytes,
            "step_s": None,
            "overhead": None,
            "evicted_bytes": None,
        }
        if self._machine is None:
            return found
        machine, calibration = self._machine
        try:
            told = forecast(
                traced.trace,
                machine,
                calibration,
                items=traced.items,
                policy=policy_of(way),
                limit=self._limit_bytes(setting, way),
                gpus=setting.gpus,
                gradient_bytes=traced.gradient_bytes,
                exact=self._exact,
            )
        except LmsError:
            return found
        return {**found, "step_s": told.step_s, "overhead": told.overhead, "evicted_bytes": told.d2h_bytes}

    def _need(self, setting: Setting, way: str) -> Need:
        """What the step of a rank needs; several ranks gather their gradients in buckets, which are no pages."""
        traced = self.traced(setting, way)
        extra_bytes = traced.gradient_bytes if setting.gpus > 1 else 0
        if way not in OURS:
            return need_of(traced.trace, extra_bytes)
        limit = self._limit_bytes(setting, way)
        return within(traced.trace, limit, extra_bytes, max(0, self._room(setting, way) - limit), self._exact)[1]

    def _room(self, setting: Setting, way: str) -> int:
        """What a rank has: on the CPU all of them share what there is."""
        if self._card_bytes is not None and way != UNLIMITED:
            return self._card_bytes
        return self._device_bytes // setting.gpus if self._device == "cpu" else self._device_bytes

    def _limit_bytes(self, setting: Setting, way: str) -> int:
        """What pages may occupy."""
        from torch_lms.runtime.limits import margin

        room = self._room(setting, way)
        if way not in OURS:
            return room
        if self._limit is not None:
            return min(parse_bytes(self._limit, name="--limit", whole=room), self._device_bytes)
        return room if self._card_bytes is None else max(0, room - margin(room) - self.beside_bytes)


def _this_machine() -> tuple[Machine, Calibration] | None:
    """This machine as it was calibrated; None if it was not."""
    from torch_lms.runtime.calibrate import this_machine

    try:
        return this_machine()
    except LmsError:
        return None


def _kept_bytes(step: Trace) -> int:
    """The most bytes on the device where everything that backward needs is elsewhere meanwhile."""
    alive = np.array(demand_curve(step).nbytes, dtype=np.int64)
    for gap in saved_gaps(step):
        for first, last in gap.spans:
            alive[first : last + 1] -= gap.nbytes
    return int(alive.max(initial=0))
