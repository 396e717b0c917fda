"""Steps that differ in the sizes of their pages alone follow one plan: batches of other lengths, caches that grow."""

import random

import pytest
import torch
from shares import MIN_SIZE, Program, run, trained
from torch import nn

import torch_lms
from torch_lms.engine import engine
from torch_lms.runtime import api
from torch_lms.runtime.fast_path import FastPath


def texts(steps: int) -> list[torch.Tensor]:
    """The results of a training on texts of other lengths each time."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoder(layer, 3), nn.Linear(32, 50))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    lengths = random.Random(1)

    def loss() -> torch.Tensor:
        batch = torch.randint(0, 50, (4, lengths.randint(12, 64)))
        return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())

    return trained(model, optimizer, loss, steps)


def pictures(steps: int) -> list[torch.Tensor]:
    """The same on pictures of other shapes."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sides = random.Random(1)

    def loss() -> torch.Tensor:
        return model(torch.randn(2, 3, sides.randint(24, 64), sides.randint(24, 64))).square().mean()

    return trained(model, optimizer, loss, steps)


class Decoder(nn.Module):
    """Of words one by one, with a cache of keys and values that each makes anew, one row longer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 3 * 64) for _ in range(4)])
        self.caches = [torch.randn(2, 16, 64) for _ in self.layers]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            query, *new = layer(x).chunk(3, dim=1)
            self.caches[number] = torch.cat([self.caches[number], torch.stack(new)], dim=1)
            keys, values = self.caches[number]
            x = torch.tanh(torch.softmax(query @ keys.T, dim=1) @ values)
        return x


def words(steps: int) -> list[torch.Tensor]:
    """The results of such steps."""
    torch.manual_seed(0)
    decoder = Decoder()
    results = [torch.randn(1, 64)]
    with torch.no_grad():
        for _ in range(steps):
            results.append(decoder(results[-1]))
    return results


PROGRAMS: dict[str, Program] = {
    "texts": lambda: texts(36),
    "pictures": lambda: pictures(48),
    "words": lambda: words(48),
}


@pytest.mark.usefixtures("_each_interposer")
@pytest.mark.parametrize("share", [0.5, 0.6])
@pytest.mark.parametrize("name", PROGRAMS)
def test_most_steps_follow_a_plan(name: str, share: float) -> None:
    stats = run(PROGRAMS[name], share)
    assert stats.evicted_bytes + stats.recomputed_bytes > 0
    assert stats.planned_steps >= 0.7 * stats.steps
    assert stats.diverged_steps <= 0.2 * stats.steps


@pytest.fixture
def _as_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path closes where little room is left."""
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", "python")
    monkeypatch.setattr(FastPath, "fills_limit", False)


@pytest.mark.usefixtures("_as_on_an_accelerator")
@pytest.mark.parametrize("name", PROGRAMS)
def test_so_they_do_where_all_fits_but_the_fast_path_would_close(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_RESERVE", 1 / 2)
    stats = run(PROGRAMS[name], 1.1)
    assert stats.evictions == 0
    assert stats.planned_steps >= 0.7 * stats.steps


@pytest.mark.usefixtures("_each_interposer")
@pytest.mark.parametrize("share", [1.02, 1.25])
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_need_none_where_all_fits(name: str, share: float) -> None:
    """All operations pass. Where little room is left, it is asked what they create."""
    stats = run(PROGRAMS[name], share)
    assert stats.evictions == 0
    assert (stats.planned_steps, stats.planning_s) == (0, 0)


@pytest.mark.usefixtures("_each_interposer")
def test_there_is_room_for_the_largest_page_that_was_created() -> None:
    """Where that is a quarter of the limit, it is asked from three quarters of it on what operations create."""

    def program() -> list[torch.Tensor]:
        kept = [torch.full((1000,), float(number)) for number in range(14)]
        torch_lms.step()
        results = []
        for number in range(12):
            results.append(torch.cat(kept[:5]).sum())
            if number % 3 == 2:  # in between, what is alive grows to where there is no room for as much
                kept.append(kept[0] + number)
            torch_lms.step()
        return results

    run(program, 21 / 20)


@pytest.mark.usefixtures("_each_interposer")
def test_what_creates_more_than_is_left_is_asked() -> None:
    """Although nothing that large was created before, and the fast path is open."""

    def program() -> list[torch.Tensor]:
        kept = [torch.full((1000,), float(number)) for number in range(14)]
        results = []
        for number in range(8):
            results.append((torch.cat(kept[:8]) if number == 7 else kept[0] + number).sum())
            torch_lms.step()
        return [*results, *kept]

    assert run(program, 0.85).evictions > 0


UNARY = (
    "abs acos acosh angle asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac lgamma "
    "log log10 log1p log2 logit neg reciprocal relu round rsqrt sigmoid sign sin sinc sinh sqrt tan tanh trunc"
)


@pytest.mark.usefixtures("_each_interposer")
@pytest.mark.parametrize("results", [3, 4])
def test_steps_that_never_repeat_are_recorded_where_room_is_short(results: int) -> None:
    """There is room for four pages. At three the fast path is open, though little room is left."""
    kept = torch.zeros(1000)
    are_recorded = []
    with torch_lms.session(limit=17_500, min_size=MIN_SIZE, device="cpu") as lms:
        for name in UNARY.split()[:30]:
            made = [getattr(torch, name)(kept) for _ in range(results)]
            del made
            torch_lms.step()
            are_recorded.append(api.current_session()._default.engine.record is not None)
        stats = lms.stats()
    assert all(are_recorded) if results == 4 else not any(are_recorded)
    assert stats.peak_resident_bytes <= stats.limit_bytes


@pytest.mark.usefixtures("_as_on_an_accelerator")
def test_steps_that_never_repeat_are_not_recorded_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the fast path until it closes, but for a few now and then."""
    monkeypatch.setattr(engine, "_MAX_FRUITLESS", 4)
    monkeypatch.setattr(engine, "_TRIED_AGAIN_AFTER", 16)
    kept = torch.zeros(1000)
    are_recorded = []
    with torch_lms.session(limit=17_500, min_size=MIN_SIZE, device="cpu"):
        for name in UNARY.split()[:37]:
            results = [getattr(torch, name)(kept) for _ in range(3)]
            del results
            torch_lms.step()
            are_recorded.append(api.current_session()._default.engine.record is not None)
    assert (
        "".join("-x"[is_recorded] for is_recorded in are_recorded) == "x" * 5 + "-" * 11 + "x" * 5 + "-" * 11 + "x" * 5
    )
