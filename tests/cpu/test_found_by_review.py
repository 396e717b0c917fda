"""What a hostile reader of the road to a GPU found, as far as a CPU shows it."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import torch_lms
from torch_lms.capture.mode import LmsMode
from torch_lms.capture.schema import describe
from torch_lms.capture.sizes import result_device
from torch_lms.runtime import api

MIB = 1 << 20


@pytest.fixture
def lms() -> Iterator[api.Lms]:
    with torch_lms.session(limit=0, min_size=1, policy="reactive") as running:
        yield running
        running.validate()


# -- 2: writes that nobody dispatched, in an optimizer that PyTorch does not know --------------------------------------


class Foreign(torch.optim.Optimizer):
    """Not PyTorch's."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})


class Fused(Foreign):
    """Updates where nobody sees it, as functions in C++ do."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
            with torch._C._DisableTorchDispatch():
                for parameter in group["params"]:
                    momentum = self.state[parameter]["momentum"].mul_(0.9).add_(parameter.grad)
                    parameter.sub_(momentum, alpha=group["lr"])


class Plain(Foreign):
    """Made of operations."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"])


def train(kind: Any, steps: int = 6) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))
    optimizer = kind(model.parameters())
    for _ in range(steps):
        x = torch.randn(1024, 128)
        for layer in model:
            x = layer(x).sin()
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()], optimizer


@pytest.mark.parametrize("policy", ["reactive", "planned"])
def test_2_an_optimizer_that_writes_unseen(policy: str) -> None:
    expected, _ = train(Fused)
    with torch_lms.session(limit=int(1.5 * MIB), min_size=256, policy=policy) as lms:
        found, _ = train(Fused)
        assert lms.stats().evictions > 0
        lms.validate()
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("limit", [int(1.5 * MIB), 200_000, 0])
def test_2_an_optimizer_of_operations_is_held_at_most_once(limit: int) -> None:
    expected, _ = train(Plain)
    with torch_lms.session(limit=limit, min_size=256) as lms:
        found, optimizer = train(Plain)
        watched = api._running._steps._foreign  # type: ignore[union-attr]
        assert optimizer in watched._known
        lms.validate()
        assert all(map(torch.equal, found, expected))


class Starting(Foreign):
    """Its first step makes twice as much state as it has parameters."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["sum"], state["squares"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["sum"].add_(parameter.grad)
                state["squares"].addcmul_(parameter.grad, parameter.grad)
                parameter.addcdiv_(state["sum"], state["squares"].sqrt().add_(1e-8), value=-group["lr"])


class Anchored(Foreign):
    """Pulls parameters to where they began, which nothing writes after the first step; and has its state in lists."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                began, sums = self.state[parameter].setdefault("all", [parameter.clone(), torch.zeros_like(parameter)])
                if self.writes_all:
                    began.lerp_(parameter, 0.01)
                sums.add_(parameter.grad)
                parameter.lerp_(began, 0.1).sub_(sums, alpha=group["lr"])


@pytest.mark.parametrize("writes_all", [False, True])
def test_2_what_is_not_seen_to_be_written_may_be(writes_all: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Anchored, "writes_all", writes_all, raising=False)
    expected, _ = train(Anchored)
    with torch_lms.session(limit=MIB, min_size=256) as lms:
        found, optimizer = train(Anchored)
        watched = api._running._steps._foreign  # type: ignore[union-attr]
        assert optimizer in watched._harmless
        assert (optimizer in watched._known) is writes_all
        lms.validate()
    assert all(map(torch.equal, found, expected))


def test_2_what_it_makes_of_operations_stays_within_the_limit() -> None:
    """Parameters and gradients fit under the limit, and leave no room for the state."""

    def train(steps: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(8)))
        optimizer = Starting(model.parameters())
        for _ in range(steps):
            model(torch.randn(16, 128)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return [parameter.detach().clone() for parameter in model.parameters()]

    expected = train(steps=3)
    layer = 128 * 128 * 4
    with torch_lms.session(limit=17 * layer, min_size=4096) as lms:
        found = train(steps=3)
        assert lms.stats().peak_resident_bytes <= 17 * layer
        lms.validate()
    assert all(map(torch.equal, found, expected))


def test_2_an_optimizer_that_fails_holds_nothing_any_more() -> None:
    class Failing(Plain):
        def step(self, closure: None = None) -> None:
            raise ValueError("no")

    with torch_lms.session(limit=MIB, min_size=256) as lms:
        with pytest.raises(ValueError, match="no"):
            train(Failing)
        train(Plain, steps=2)
        lms.reclaim()
        assert lms.stats().resident_bytes == 0
        layer = nn.Linear(128, 128)
        layer(torch.ones(1, 128)).sum().backward()
        with pytest.raises(ValueError, match="no"):
            Failing(layer.parameters()).step()
    assert torch._C.StorageBase.nbytes(layer.weight.untyped_storage()) > 0
    assert layer(torch.ones(1, 128)).shape == (1, 128)


# -- 3: operators that we do not know, after memory ran out ------------------------------------------------------------


def test_3_opaque_operators_never_run_twice(lms: api.Lms) -> None:
    calls = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.mul_(2))
        if len(calls) == 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes")
        return x.sum()

    with torch.library._scoped_library("torch_lms_doubling", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", double, "CompositeExplicitAutograd")
        x = torch.ones(1000)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.ops.torch_lms_doubling.double(x)
        assert x.sum().item() == 2000
        assert len(calls) == 1


# -- 14: operators of another device -----------------------------------------------------------------------------------


ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "claims"),
    [
        (ATEN.zeros.default, ([MIB],), {"device": torch.device("cpu")}, False),
        (ATEN.zeros.default, ([MIB],), {"device": torch.device("meta")}, True),
        (ATEN.zeros.default, ([MIB],), {}, False),
        (ATEN.stack.default, ([torch.ones(MIB)] * 2,), {}, False),
        (ATEN.add.Tensor, (torch.ones(MIB, device="meta"), torch.tensor(1.0)), {}, True),
        (ATEN.add.Tensor, (torch.tensor(1.0), torch.ones(MIB, device="meta")), {}, True),
        (ATEN._to_copy.default, (torch.ones(MIB, device="meta"),), {"device": torch.device("cpu")}, False),
        (ATEN._to_copy.default, (torch.ones(MIB),), {"device": torch.device("meta")}, True),
    ],
)
def test_14_operators_of_another_device_claim_no_room(func: Any, args: Any, kwargs: Any, claims: bool) -> None:
    mode = LmsMode(Mock(kind="meta"))
    assert (mode._new_bytes(func, describe(func), args, kwargs) >= 4 * MIB) == claims


def test_14_the_device_of_what_is_made() -> None:
    x = torch.ones(3)
    assert result_device((x,), {"device": "cuda:1"}) == torch.device("cuda:1")
    assert result_device((torch.ones(()), x.to("meta")), {}) == torch.device("meta")
    assert result_device(([x.to("meta")],), {"device": None}) == torch.device("meta")
    assert result_device((3,), {}) == torch.device("cpu")
