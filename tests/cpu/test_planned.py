"""Steps that repeat: what leaves, what comes back, and when. The floors come from a linear program over the trace."""

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from bits import same_bits
from nets import UNet3d, encoder
from optimizers import OPTIMIZERS, SIDE, layers
from torch import nn
from traffic import ADAM, MIN_SIZE, NETS, SGD, STEPS, WARM_UP, demand_of, fixed_speeds, measure, one_thread, training

import torch_lms
from torch_lms.engine import engine
from torch_lms.report import perfetto
from torch_lms.runtime import backend
from torch_lms.runtime.limits import AutoLimit
from torch_lms.trace import demand_curve, load, save


@pytest.mark.parametrize("share", [2, 4])
@pytest.mark.parametrize("net", NETS)
def test_what_leaves_is_near_the_floor(net: str, share: int) -> None:
    limit = demand_of(NETS[net]) // share
    with one_thread():
        traffic = measure(NETS[net], limit)
    stats = traffic.stats
    assert stats.planned_steps == STEPS
    assert (stats.diverged_steps, stats.replans) == (0, 0)
    assert traffic.floor > 0
    assert traffic.ratio <= 1.1
    assert stats.traffic_ratio == pytest.approx(traffic.ratio, rel=0.01)
    assert stats.peak_resident_bytes <= limit + traffic.working_set_bytes


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizers_state_is_swept_once(optimizer: str) -> None:
    make = partial(training, layers, (8, SIDE), OPTIMIZERS[optimizer])
    with one_thread(), fixed_speeds():
        traffic = measure(make, demand_of(make) // 2)
    assert traffic.stats.planned_steps == STEPS
    assert traffic.ratio <= 1.05


def test_steps_without_a_plan_are_measured_beside_planned_ones() -> None:
    make = NETS["the demo's U-Net, 32^3"]
    with one_thread():
        traffic = measure(make, demand_of(make) // 2, "reactive")
    assert traffic.stats.evicted_bytes > 0
    assert (traffic.trace, traffic.floor) == (None, 0)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("share", [2, 4, 8])
def test_planned_steps_are_equal_to_the_bit(net: str, share: int) -> None:
    model, step = NETS[net]()
    expected = [*(step() for _ in range(WARM_UP + 2)), *model.state_dict().values()]
    limit = demand_of(NETS[net]) // share
    model, step = NETS[net]()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        results = [step() for _ in range(WARM_UP + 2)]
        lms.validate()
        assert lms.stats().planned_steps >= 2
    assert same_bits([*results, *model.state_dict().values()], expected)


def test_a_plan_outlives_small_changes_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """With limit "auto" that is asked for in every step, and other programs take some and give it back."""
    limit = demand_of(NETS["transformer encoder with Adam"]) // 2
    changes = itertools.cycle((0.97, 1.0, 0.98, 0.99))

    def auto_limit(_device: torch.device, _workspace_bytes: int) -> AutoLimit:
        held = torch_lms.stats().resident_bytes if torch_lms.is_enabled() else 0
        return AutoLimit(int(limit * next(changes)) - held, "a test says so", limit)

    monkeypatch.setattr(backend, "auto_limit", auto_limit)
    monkeypatch.setattr(engine, "REFRESH_EVERY_S", 0.0)
    _, step = NETS["transformer encoder with Adam"]()
    with torch_lms.session(min_size=MIN_SIZE) as lms:
        for _ in range(WARM_UP + 8):
            step()
        stats = lms.stats()
    assert stats.planned_steps >= 8
    assert stats.replans <= 1


def test_what_planned_steps_moved_is_compared_whenever_it_is_asked_for() -> None:
    """Without recomputation a plan is near the least; the session need not be on any more, nor its plan be in force."""
    model, step = NETS["the demo's U-Net, 32^3"]()
    limit = demand_of(NETS["the demo's U-Net, 32^3"]) // 2
    torch_lms.enable(limit=limit, min_size=MIN_SIZE, recompute=False)
    for _ in range(WARM_UP + 2):
        step()
    assert torch_lms.stats().traffic_ratio is None
    assert torch_lms.stats(floor=True).traffic_ratio == pytest.approx(1.0, rel=0.1)
    torch_lms.enable(limit=limit // 2, min_size=MIN_SIZE, recompute=False)
    for _ in range(2):  # the second has no plan: the one for twice the limit was given up
        step()
    stats = torch_lms.stats(floor=True)
    assert stats.planned_steps == 4
    assert stats.traffic_ratio is not None
    assert stats.traffic_ratio >= 1
    torch_lms.disable()
    assert torch_lms.stats(floor=True).traffic_ratio == stats.traffic_ratio
    del model


def test_inference_writes_nothing_out() -> None:
    torch.manual_seed(0)
    model, x = encoder(8, 128).eval(), torch.randn(2, 8, 128)
    weights = sum(p.untyped_storage().nbytes() for p in model.parameters())
    with torch.no_grad():
        expected = model(x)
        with torch_lms.session(limit=weights // 4, min_size=1024) as lms:
            for _ in range(4):
                model(x)
            lms.reset_stats()
            results = [model(x) for _ in range(4)]
            stats = lms.stats()
    assert all(same_bits([result], [expected]) for result in results)
    assert stats.evicted_bytes == 0
    assert stats.fetched_bytes >= 4 * (weights - weights // 4)
    assert stats.planned_steps == 4


def test_state_three_times_the_limit_trains() -> None:
    make = partial(training, partial(encoder, 4, 128), (2, 8, 128), ADAM)
    model, step = make()
    expected = [*(step() for _ in range(7)), *model.state_dict().values()]
    state = 3 * sum(p.untyped_storage().nbytes() for p in model.parameters())
    model, step = make()
    with torch_lms.session(limit=state // 3, min_size=1024) as lms:
        results = [step() for _ in range(7)]
        lms.validate()
        assert lms.stats().planned_steps >= 3
    assert same_bits([*results, *model.state_dict().values()], expected)


def test_alternating_shapes_need_no_new_plans() -> None:
    """Two crops in training, and an evaluation after every other step: three kinds of steps."""

    def program(steps: int, started: Callable[[], None]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = UNet3d(4)
        update = SGD(model.parameters())
        results = []
        for number in range(12 + steps):
            if number == 12:
                started()
            update.zero_grad()
            loss = model(torch.randn((1, 1, *((16, 16, 16), (24, 16, 16))[number % 2]))).square().mean()
            loss.backward()
            update.step()
            results.append(loss.detach())
            if number % 2:
                with torch.no_grad():
                    results.append(model(torch.ones(1, 1, 16, 16, 16)).sum())
        return results

    expected = program(50, lambda: None)
    with torch_lms.session(limit=1_800_000, min_size=MIN_SIZE) as lms:
        results = program(50, lms.reset_stats)
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.replans == 0
    assert stats.planned_steps == stats.steps == 75
    assert stats.evicted_bytes + stats.recomputed_bytes > 0


class Skipping(nn.Module):
    """Layers that are skipped at random, by what is drawn into a small tensor that nothing else is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x) * torch.empty(len(x), 1).bernoulli_(0.8)
        return x


@pytest.mark.parametrize("share", [2, 4])
def test_what_is_small_makes_no_step_unlike_another(share: int) -> None:
    """Whatever room is left when it is made."""
    make = partial(training, Skipping, (64, 64), ADAM)
    limit = demand_of(make) // share
    _, step = make()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        for _ in range(3):
            step()
        lms.reset_stats()
        for _ in range(4):
            step()
        stats = lms.stats()
    assert stats.planned_steps == 4


def test_a_step_unlike_the_plan_goes_on_without_it() -> None:
    """What differs: the batch, the number of layers, an exception in the midst, an access, nothing at all."""

    def program() -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(6)])
        update = ADAM(layers.parameters())
        results = []
        for number in range(24):
            x = torch.randn(200 if number == 9 else 256, 64)
            update.zero_grad()
            for layer in list(layers)[: 4 if number == 13 else 6]:
                x = torch.relu(layer(x))
                if number == 17:
                    x.numpy(force=True)
            if number != 21:
                x.square().mean().backward()
                update.step()
            results.append(x.detach().sum())
        return [*results, *layers.parameters()]

    expected = program()
    with torch_lms.session(limit=300_000, min_size=1024) as lms:
        results = program()
        stats = lms.stats()
        lms.validate()
    assert same_bits(results, expected)
    assert 10 <= stats.planned_steps < 20
    assert 3 <= stats.diverged_steps < 8


def test_copies_are_made_beside_the_program() -> None:
    """Most pages that come back have come before they are needed."""
    make = partial(training, partial(UNet3d, 8), (1, 1, 48, 48, 48))
    limit = demand_of(make) // 2
    _, step = make()
    with one_thread(), torch_lms.session(limit=limit, recompute=False) as lms:
        for _ in range(WARM_UP + 2):
            step()
        timeline, plan = lms.timeline(), lms.plan()
    fetches = [span for span in timeline.spans if span.name == "fetch"]
    assert fetches
    assert sum(map(len, plan.fetches)) >= 0.7 * len(fetches)


def test_a_timeline_has_the_policy_of_its_step() -> None:
    """What the program does afterwards follows no plan, and is no part of it."""
    make = partial(training, partial(UNet3d, 4), (1, 1, 24, 24, 24))
    limit = demand_of(make) // 2
    _, step = make()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        for _ in range(WARM_UP + 2):
            step()
        torch.ones(1 << 16).add_(1)
        assert (lms.stats().policy, lms.timeline().policy) == ("reactive", "planned")


def test_what_was_recorded(tmp_path: Path) -> None:
    """Trace, plan and timeline of the last step; the trace as a file; the timeline as Perfetto's events."""
    make = partial(training, partial(UNet3d, 4), (1, 1, 24, 24, 24))
    demand = demand_of(make)
    _, step = make()
    with torch_lms.session(limit=demand // 2, min_size=MIN_SIZE) as lms:
        with pytest.raises(torch_lms.SessionError, match="no step was recorded"):
            lms.trace()
        for _ in range(WARM_UP + 1):
            step()
        trace, plan, timeline = lms.trace(), lms.plan(), lms.timeline()
    assert demand_curve(trace).demand_bytes == pytest.approx(demand, rel=0.1)
    assert len(plan.trace.ops) == len(trace.ops)
    save(trace, tmp_path / "trace.jsonl")
    assert load(tmp_path / "trace.jsonl") == trace

    events = json.loads(json.dumps(perfetto(timeline)))["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(lanes.values()) == {"compute", "out", "in", "disk", "planning", "collective"}
    complete = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 and event["tid"] in lanes for event in complete)
    by_lane = {name: [e for e in complete if lanes[e["tid"]] == name] for name in lanes.values()}
    ops = [event for event in by_lane["compute"] if event["name"] not in ("stall", "recompute")]
    assert [event["name"] for event in ops] == [op.name for op in trace.ops]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in itertools.pairwise(ops))
    assert {event["name"] for event in by_lane["out"]} == {"evict"}
    assert {event["name"] for event in by_lane["in"]} == {"fetch"}
    assert all(event["args"]["bytes"] >= MIN_SIZE for event in by_lane["out"] + by_lane["in"])
    counters = [event["args"] for event in events if event["ph"] == "C"]
    assert max(counter["resident"] for counter in counters) <= demand // 2 + trace.working_set_bytes
    assert max(counter["disk"] for counter in counters) > 0
