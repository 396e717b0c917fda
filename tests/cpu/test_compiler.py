"""``torch.compile(model, backend="lms")``: compiled in pieces, which leave room for each other's pages."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bits import same_bits
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import torch_lms
from torch_lms.compiler import backend
from torch_lms.compiler.cut import cut, storages_of

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")


class Perceptron(nn.Sequential):
    def __init__(self, width: int = 256) -> None:
        super().__init__(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)))


class Convolved(nn.Module):
    """Has its channels last inside, whatever the program's strides; buffers that it writes; random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.dropout = nn.Dropout(0.2)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.pool(x + self.dropout(self.second(self.norm(x).relu()))).mean((2, 3))


class Peculiar(nn.Module):
    """Returns views of what it makes and of each other, and a buffer that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("sums", torch.zeros(64))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.sums.add_(x.mean(0))
        y = self.layer(x)
        return y[:, ::2].t(), y.view(-1, 32), y.sum(), self.sums * 2


@pytest.fixture(autouse=True)
def _starts_afresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many there are, of each graph that was compiled."""
    counts: list[int] = []

    def counted(*args: Any) -> Any:
        found = cut(*args)
        counts.append(len(found))
        return found

    monkeypatch.setattr(backend, "cut", counted)
    return counts


def trained(model: type[nn.Module], shapes: list[tuple[int, ...]], compiler: str | None) -> list[Tensor]:
    """Losses and the final state of a training."""
    torch.compiler.reset()
    torch.manual_seed(0)
    made = model()
    run = torch.compile(made, backend=compiler) if compiler else made
    optimizer = torch.optim.SGD(made.parameters(), lr=0.01)
    found = []
    for shape in shapes:
        results = run(torch.randn(shape))
        loss = sum(y.square().mean() for y in (results if isinstance(results, tuple) else (results,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach().clone())
    return [*found, *(value.clone() for value in made.state_dict().values())]


def demand_of(model: type[nn.Module], shapes: list[tuple[int, ...]]) -> int:
    with torch_lms.session(limit="4GB", min_size=1024) as lms:
        trained(model, shapes, None)
        return lms.stats().demand_bytes


@needs_compiler
def test_a_model_that_does_not_fit_as_a_whole(
    pieces: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")
    shapes = [(256, 256)] * 8
    expected = trained(Perceptron, shapes, "inductor")
    limit = demand_of(Perceptron, shapes) // 3
    peaks = {}
    for compiler in ("inductor", "lms"):
        with torch_lms.session(limit=limit, min_size=1024) as lms:
            found = trained(Perceptron, shapes, compiler)
            lms.validate()
            stats = lms.stats()
        assert same_bits(found, expected)  # only now: before PyTorch 2.12, what NumPy has read stays on the device
        peaks[compiler] = stats.peak_resident_bytes
    assert peaks["lms"] <= 1.1 * limit < peaks["inductor"]
    assert min(pieces) > 1
    assert stats.planned_steps > 0
    warnings = [record.getMessage() for record in caplog.records if "a region compiled" in record.getMessage()]
    assert len(warnings) == 2  # of the whole model, forward and backward; of none of the pieces
    assert all('backend="lms"' in warning for warning in warnings)


@needs_compiler
def test_layouts_that_inductor_chooses_and_random_numbers(pieces: list[int]) -> None:
    """Pieces fuse less, so sums may be rounded in another way."""
    shapes = [(4, 3, 16, 16)] * 3
    expected = trained(Convolved, shapes, "inductor")
    with torch_lms.session(limit=demand_of(Convolved, shapes) // 3, min_size=1024) as lms:
        found = trained(Convolved, shapes, "lms")
        lms.validate()
    assert min(pieces) > 1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_sizes_that_change_views_and_buffers(pieces: list[int]) -> None:
    shapes = [(64 + 8 * number, 64) for number in (0, 1, 2, 0)]
    expected = trained(Peculiar, shapes, "inductor")
    with torch_lms.session(limit=demand_of(Peculiar, shapes) // 3, min_size=1024) as lms:
        assert same_bits(trained(Peculiar, shapes, "lms"), expected)
        lms.validate()
    assert min(pieces) > 1


@needs_compiler
def test_without_gradients(pieces: list[int]) -> None:
    torch.manual_seed(0)
    model = Perceptron()
    x = torch.randn(64, 256)
    with torch.no_grad():
        expected = torch.compile(model)(x)
        torch.compiler.reset()
        with torch_lms.session(limit=1_000_000, min_size=1024) as lms:
            run = torch.compile(model, backend="lms", mode="default")
            for _ in range(2):
                assert torch.equal(run(x), expected)
                lms.validate()
                lms.reclaim()
                peak = lms.stats().peak_resident_bytes
                lms.reset_stats()  # the model was there before the session
            assert peak <= 1_000_000
    assert pieces == [4]


@needs_compiler
def test_what_is_compiled_as_a_whole(pieces: list[int], caplog: pytest.LogCaptureFixture) -> None:
    def found(x: Tensor) -> Tensor:
        return x.nonzero() * 2

    x = torch.eye(64)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert torch.equal(torch.compile(found, backend="lms")(x), found(x))
        assert "LMS is off" in caplog.text
        torch.compiler.reset()
        with torch_lms.session(limit="1MB", min_size=1024):
            assert torch.equal(torch.compile(found, backend="lms")(x), found(x))
    assert "sizes that only its values tell" in caplog.text
    assert not pieces


def test_cut() -> None:
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.mm(x, weight).sigmoid().add(1)
        values, places = x.topk(4)
        return torch.mm(values + places, weight[:4])

    graph = make_fx(forward, tracing_mode="fake")(torch.randn(64, 64), torch.randn(64, 64))
    ops = {node.name for node in graph.graph.nodes if node.op == "call_function"}
    page = 64 * 64 * 4
    for most in (page, 3 * page, 4 * page, 9 * page, 100 * page):
        pieces = cut(graph, most)
        assert {node.name for piece in pieces for node in piece} == ops
        assert not any("getitem" in piece[0].name for piece in pieces)  # the parts of a result stay with it
    assert len(cut(graph, 100 * page)) == 1
    by_kernel = cut(graph, 4 * page)  # what a multiplication takes and makes, and what is made of that
    assert [[node.name for node in piece if node.name.startswith("mm")] for piece in by_kernel] == [
        ["mm"],
        ["mm_1"],
        ["mm_2"],
        ["mm_3"],
    ]
    for piece in cut(graph, 2 * page):
        touched = {
            s: n for node in piece for used in (node, *node.all_input_nodes) for s, n in storages_of(used).items()
        }
        assert len(piece) <= 3 or sum(touched.values()) <= 2 * page  # one operation, with its view or its parts
