"""On a device with streams time is the device's, not the host's: one where operations and copies take what we say."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from contracts.delayed_device import DelayedDevice, Mark, Rig, Stream, new_rig, paged
from torch import nn

from torch_lms.runtime import clock
from torch_lms.runtime.clock import StreamClock
from torch_lms.timeline import Lane

PLENTY = 1 << 30
COPY_S = 10.0
HOST_S = 0.0


class TimedDevice(DelayedDevice):
    """An operation takes a second for each tensor that it uses, a copy ten; the host takes no time.

    Attributes:
        at_s: how far each stream is.
        uses: of tensors, by operations.
    """

    def __init__(self) -> None:
        self.at_s: defaultdict[Stream, float] = defaultdict(float)
        self.uses = 0
        self._at_s: dict[Mark, float] = {}
        super().__init__()

    def record(self, stream: Stream) -> Mark:
        mark = super().record(stream)
        self._at_s[mark] = self.at_s[stream]
        return mark

    def wait(self, stream: Stream, event: Mark) -> None:
        super().wait(stream, event)
        self.at_s[stream] = max(self.at_s[stream], self._at_s[event])

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        super().copy(target, source, stream)
        self.at_s[stream] += COPY_S

    def used(self, tensor: torch.Tensor, written: bool) -> None:
        super().used(tensor, written)
        self.uses += 1
        self.at_s[self._current] += 1

    def seconds_between(self, first: Mark, second: Mark) -> float:
        return self._at_s[second] - self._at_s[first]


def train(device: TimedDevice, steps: int) -> list[int]:
    """How often tensors were used in each step."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(96, 96) for _ in range(6)))
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    x, uses = torch.randn(96, 96), []
    for _ in range(steps):
        before = device.uses
        updates.zero_grad()
        model(x).square().mean().backward()
        updates.step()
        uses.append(device.uses - before)
        device.synchronize(device.record(device.main))  # the program looks at its loss
    return uses


@pytest.fixture(autouse=True)
def host_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock is added to the device's: the sums of whole seconds are to be whole, and plans the same."""
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: HOST_S))


@pytest.fixture
def device() -> TimedDevice:
    return TimedDevice()


@pytest.fixture
def rig(device: TimedDevice, tmp_path: Path) -> Rig:
    return new_rig(tmp_path, PLENTY, device=device)


@pytest.mark.parametrize("policy", ["reactive", "planned"])
def test_stalls_are_what_the_programs_stream_waits(device: TimedDevice, rig: Rig, policy: str) -> None:
    with paged(rig, 200_000, policy=policy) as session:
        train(device, 6)
        stats = session.stats()
        assert stats.stall_s == device.at_s[device.main] - device.uses > 0
        assert stats.hidden_fraction > 0


def test_seconds_of_operations_are_those_of_the_device_without_its_waits(device: TimedDevice, rig: Rig) -> None:
    with paged(rig, 200_000, policy="planned", recompute=False) as session:
        *_, uses = train(device, 6)
        trace = session.last_step.trace
        assert session.stats().planned_steps > 0
        assert trace is not None
        assert trace.seconds == uses
        assert {op.seconds for op in trace.ops if op.name == "aten::addmm"} == {3.0}


def test_the_timeline_is_that_of_the_device(device: TimedDevice, rig: Rig) -> None:
    with paged(rig, 200_000, policy="planned") as session:
        *_, uses = train(device, 6)
        timeline = session.last_step.timeline
        assert timeline is not None
    work = [span for span in timeline.spans if span.lane is Lane.COMPUTE]
    assert sum(span.end_s - span.start_s for span in work if span.name != "stall") == uses
    assert any(span.name == "stall" for span in work)
    assert all(first.end_s <= then.start_s for first, then in pairwise(work))
    copies = [span for span in timeline.spans if span.lane in (Lane.D2H, Lane.H2D)]  # plans take the host's own time
    assert {span.end_s - span.start_s for span in copies} == {COPY_S}


def test_nothing_is_lost_of_a_moment_that_is_days_away(device: TimedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events tell the time between them in single precision."""
    own, exact = StreamClock(device), device.seconds_between
    monkeypatch.setattr(device, "seconds_between", lambda *marks: float(torch.tensor(exact(*marks))))
    began_s = own.when(own.mark())
    for _ in range(10_000):
        device.at_s[device.main] += 25.0001
        then_s = own.when(own.mark())
    assert then_s - began_s == pytest.approx(250_001, abs=0.01)
    before = own.mark()
    device.at_s[device.main] += 0.001
    assert own.when(own.mark()) - own.when(before) == pytest.approx(0.001, rel=0.001)
