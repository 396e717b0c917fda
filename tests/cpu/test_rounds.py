"""Programs that have no optimizer, in rounds of a forward and a backward pass, or without that (N14)."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

import torch_lms

LAYERS = 4
PAGE = 16 * 1024
LIMIT = 2 * LAYERS * PAGE
ROUNDS = 13


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh()) for _ in range(LAYERS)))


def descend(weights: Iterable[torch.Tensor]) -> None:
    with torch.no_grad():
        for weight in weights:
            weight -= 0.1 * weight.grad
            weight.grad = None


def copies(weights: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in weights]


def updates_by_hand(rounds: int) -> list[torch.Tensor]:
    model = network()
    for _ in range(rounds):
        model(torch.ones(64, 64)).square().mean().backward()
        descend(model.parameters())
    return copies(model.parameters())


def functional_derivatives(rounds: int) -> list[torch.Tensor]:
    model = network()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, weights, torch.ones(64, 64)).square().mean()

    for _ in range(rounds):
        gradients = torch.func.grad(loss)(weights)
        weights = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
    return list(weights.values())


def saliency(rounds: int) -> list[torch.Tensor]:
    model, found = network(), []
    for number in range(rounds):
        image = torch.full((64, 64), 0.1 * number, requires_grad=True)
        found += torch.autograd.grad(model(image).square().mean(), image)
    return [image[:2].clone() for image in found]


def gradient_penalty(rounds: int) -> list[torch.Tensor]:
    """Two backward passes a round, the first of which is differentiated."""
    model = network()
    for _ in range(rounds):
        image = torch.ones(64, 64, requires_grad=True)
        loss = model(image).square().mean()
        (slope,) = torch.autograd.grad(loss, image, create_graph=True)
        (loss + slope.square().sum()).backward()
        descend(model.parameters())
    return copies(model.parameters())


def without_modules(rounds: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    weights = [(torch.randn(64, 64) / 8).requires_grad_() for _ in range(LAYERS)]
    for _ in range(rounds):
        x = torch.ones(64, 64)
        for weight in weights:
            x = (x @ weight).tanh()
        x.square().mean().backward()
        descend(weights)
    return copies(weights)


def inference_that_records(rounds: int) -> list[torch.Tensor]:
    """Somebody forgot ``no_grad``."""
    model = network()
    return [model(torch.full((64, 64), 0.1 * number)).detach()[:2].clone() for number in range(rounds)]


@pytest.mark.parametrize(
    "program",
    [updates_by_hand, functional_derivatives, saliency, gradient_penalty, without_modules, inference_that_records],
)
def test_each_round_is_a_step_and_is_planned(
    program: Callable[[int], list[torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")
    expected = program(ROUNDS)

    with torch_lms.session(limit=LIMIT, min_size=PAGE, device="cpu") as lms:
        seen = program(ROUNDS)
        stats = lms.stats()

    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    # The first ends where the ninth round begins, and the last has not ended; without modules, with the pass.
    assert stats.steps == ROUNDS - 8 + (program is without_modules)
    assert stats.planned_steps >= stats.steps // 2
    assert stats.demand_bytes > LIMIT
    assert stats.peak_resident_bytes <= LIMIT


def test_what_was_alive_is_told_before_a_step_has_ended() -> None:
    with torch_lms.session(limit=LIMIT, min_size=PAGE, device="cpu") as lms:
        for most in (0, 10, 10):
            tensors = [torch.ones(PAGE // 4) for _ in range(most)]
            del tensors
            assert lms.stats().demand_bytes == most * PAGE
        lms.step()
        assert lms.stats().demand_bytes == 10 * PAGE


@pytest.mark.parametrize("has_pass_each", [True, False])
@pytest.mark.parametrize("times", [4, 8, 20])
def test_gradients_that_accumulate_are_of_one_step_and_so_are_calls_in_a_loop(times: int, has_pass_each: bool) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with torch_lms.session(limit="1TB", min_size=PAGE, device="cpu") as lms:
        steps = []
        for _ in range(3):
            x = torch.ones(64, 64)
            for _ in range(times):
                x = model(x)
                if has_pass_each:
                    x.square().mean().backward()
                    x = x.detach()
            if not has_pass_each:
                x.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps.append(lms.stats().steps)

    assert steps == [steps[0], steps[0] + 1, steps[0] + 2]
    assert steps[0] == 1 + max(0, times - 8)  # before the first, nobody knows that there is an optimizer


def test_validation_between_rounds_does_not_begin_anew() -> None:
    model = network()
    with torch_lms.session(limit="1TB", min_size=PAGE, device="cpu") as lms:
        steps = []
        for _ in range(4):
            for _ in range(10):
                model(torch.ones(64, 64)).square().mean().backward()
            with torch.no_grad():
                model(torch.ones(64, 64))
            steps.append(lms.stats().steps)
    assert steps == [3, 13, 23, 33]


def test_what_the_program_says_of_its_steps_holds() -> None:
    model = network()

    with torch_lms.session(limit="1TB", min_size=PAGE, device="cpu") as lms:
        for number in range(1, 40):
            model(torch.ones(64, 64)).square().mean().backward()
            if number % 5 == 0:
                torch_lms.step()
        assert lms.stats().steps == 7


def test_the_engine_of_backward_passes_is_pytorchs_own_after_a_session() -> None:
    before = torch.autograd.Variable._execution_engine
    with torch_lms.session(limit=LIMIT, min_size=PAGE, device="cpu"):
        assert torch.autograd.Variable._execution_engine is not before
    assert torch.autograd.Variable._execution_engine is before
