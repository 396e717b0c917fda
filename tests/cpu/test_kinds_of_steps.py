"""Steps of several kinds that begin alike: gradients are clipped now and then, an update is skipped."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torch_lms
from tests.injection import counted
from tests.ways import IS_NATIVE
from torch_lms.engine import Engine
from torch_lms.runtime import api

PAGE = 16 * 1024
LAYERS = 12
STEPS = 20
LIMIT = 2 * LAYERS * PAGE


class Training:
    """Layers whose weights and activations are pages of one size.

    Args:
        end: called with the model and the number of the step after its backward pass; says whether to update.
    """

    def __init__(self, end: Callable[[nn.Module, int], bool]) -> None:
        torch.manual_seed(0)
        self._model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh()) for _ in range(LAYERS)))
        self._update = torch.optim.SGD(self._model.parameters(), lr=0.1)
        self._end = end

    def step(self, number: int) -> torch.Tensor:
        loss = self._model(torch.ones(64, 64)).square().mean()
        loss.backward()
        if self._end(self._model, number):
            self._update.step()
        self._update.zero_grad()
        if torch_lms.is_enabled():
            torch_lms.step()
        return loss.detach()


def clips(model: nn.Module, number: int) -> bool:
    if number % 3 == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return True


def skips(_: nn.Module, number: int) -> bool:
    """As a scaler of gradients does that found one infinite: such a step is the beginning of any other."""
    return number % 4 != 1


@pytest.fixture(autouse=True)
def plans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("end", [clips, skips])
def test_each_follows_its_plan(end: Callable[[nn.Module, int], bool], recompute: bool) -> None:
    training = Training(end)
    expected = [training.step(number) for number in range(STEPS)]
    training = Training(end)
    with torch_lms.session(limit=LIMIT, min_size=1024, device="cpu", recompute=recompute) as lms:
        found = [training.step(number) for number in range(STEPS // 2)]
        lms.reset_stats()
        found += [training.step(number) for number in range(STEPS // 2, STEPS)]
        lms.validate()
        stats = lms.stats()
        assert len(api.last_step().trace.ops) > 3 * LAYERS
    assert all(map(torch.equal, found, expected))
    assert stats.planned_steps == STEPS // 2
    assert stats.peak_resident_bytes <= LIMIT


@pytest.mark.skipif(not IS_NATIVE, reason="no native interposer here")
@pytest.mark.parametrize("end", [clips, skips])
def test_operations_pass_natively_that_are_those_of_two_plans(end: Callable[[nn.Module, int], bool]) -> None:
    training = Training(end)
    with torch_lms.session(limit=LIMIT, min_size=1024, device="cpu", recompute=False) as lms:
        for number in range(STEPS // 2):
            training.step(number)
        ops = len(lms.trace().ops)
        with counted(Engine, "op_begins") as told:
            for number in range(STEPS // 2, STEPS):
                training.step(number)
    assert told.calls < 0.2 * ops * STEPS // 2
