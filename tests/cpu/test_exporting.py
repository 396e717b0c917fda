"""Models are traced, exported and saved below their demand: as without, and what they hold can be paged afterwards."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import torch_lms
from tests.bits import same_bits
from tests.shares import MIN_SIZE, run, trained
from tests.ways import AT_HAND
from torch_lms.capture.raw import ESCAPED


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, groups=32, padding="same", dilation=2),
        nn.ConvTranspose2d(32, 16, 2, stride=2, bias=False),
        nn.Unflatten(2, (4, 16)),
        nn.Conv3d(16, 8, 3, padding=1),
        nn.Flatten(3),
        nn.Flatten(1, 2),
        nn.Conv1d(32, 16, 5),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


def layers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))


def traced(make: Callable[[], nn.Module]) -> tuple[list[str], list[Tensor]]:
    """The operators of the graph; and what the model and its traced self give, which is then saved, loaded and trained
    on.
    """
    torch.manual_seed(0)
    x = torch.randn(4, 3, 32, 32)
    model = make().eval()
    expected = model(x)
    found = torch.jit.trace(model, x)
    file = io.BytesIO()
    torch.jit.save(found, file)
    file.seek(0)
    again = torch.jit.load(file)
    results = [expected.detach(), found(x).detach(), again(x).detach()]
    optimizer = torch.optim.AdamW(again.parameters())
    results += trained(again, optimizer, lambda: again(torch.randn(4, 3, 32, 32)).square().mean(), 3)
    nodes = [node.kind() for node in found.inlined_graph.nodes()]
    return [kind for kind in nodes if kind not in ("prim::Constant", "prim::ListConstruct")], results


@pytest.mark.parametrize("way", AT_HAND)
@pytest.mark.parametrize("share", [1.5, 0.4])
@pytest.mark.parametrize("make", [convolutions, layers])
def test_a_model_is_traced_as_without(
    make: Callable[[], nn.Module], share: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", AT_HAND[-1])
    stock_operators, _ = traced(make)
    with torch_lms.session(limit="1GB", min_size=MIN_SIZE, device="cpu") as lms:
        _, expected = traced(make)
        demand = lms.stats().demand_bytes
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", way)
    with torch_lms.session(limit=int(share * demand), min_size=MIN_SIZE, device="cpu") as lms:
        operators, results = traced(make)
        assert share > 1 or lms.stats().evictions
        lms.validate()
    assert operators == stock_operators
    if make is convolutions:
        assert operators.count("aten::_convolution") + operators.count("aten::_convolution_mode") == 5
    assert same_bits(results, expected)
    assert same_bits([results[1], results[2]], [results[0]] * 2)


@pytest.mark.parametrize("way", AT_HAND)
def test_a_function_mode_of_the_programs_sees_no_call_of_ours(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", way)
    seen: list[str] = []

    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    def program() -> list[str]:
        torch.manual_seed(0)
        model = layers()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        seen.clear()
        with Seen():
            trained(model, optimizer, lambda: model(torch.randn(4, 3, 32, 32)).square().mean(), 3)
        return sorted(name for name in seen if name != "__get__")  # PyTorch's optimizers ask for gradients run by run

    expected = program()
    with torch_lms.session(limit="1GB", min_size=MIN_SIZE, device="cpu") as lms:
        assert program() == expected
        demand = lms.stats().demand_bytes
    with torch_lms.session(limit=int(0.4 * demand), min_size=MIN_SIZE, device="cpu") as lms:
        assert program() == expected
        assert lms.stats().evictions


@pytest.mark.parametrize("share", [1.5, 0.5])
def test_weights_that_were_exported_can_be_paged_afterwards(share: float) -> None:
    """``torch.export.save`` asks for addresses, compares some, and reads by the others."""

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(4, 3, 32, 32)
        model = layers()
        tied = nn.Sequential(model, nn.Linear(10, 10), nn.Linear(10, 10))
        tied[2].weight = tied[1].weight
        file = io.BytesIO()
        torch.export.save(torch.export.export(tied.eval(), (x,)), file)
        file.seek(0)
        loaded = torch.export.load(file)
        results = [loaded.module()(x).detach(), *(value.detach().clone() for value in loaded.state_dict.values())]
        del loaded  # before PyTorch 2.12 what is loaded cannot be paged
        optimizer = torch.optim.AdamW(tied.parameters())
        return [
            *results,
            *trained(tied, optimizer, lambda: tied(torch.randn(4, 3, 32, 32)).square().mean(), 3),
        ]

    stats = run(program, share)
    assert ESCAPED not in stats.unpaged_bytes


def test_weights_that_became_an_onnx_file_can_be_paged_afterwards(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(4, 3, 32, 32)
        model = convolutions()
        model(x)
        torch.onnx.export(model.eval(), (x,), tmp_path / "model.onnx", dynamo=True, verbose=False)
        written = torch.frombuffer(bytearray((tmp_path / "model.onnx").read_bytes()), dtype=torch.uint8).clone()
        data = (tmp_path / "model.onnx.data").read_bytes()
        optimizer = torch.optim.AdamW(model.parameters())
        return [
            torch.tensor(len(written)),
            torch.frombuffer(bytearray(data), dtype=torch.uint8).clone(),
            *trained(model, optimizer, lambda: model(torch.randn(4, 3, 32, 32)).square().mean(), 3),
        ]

    stats = run(program, 0.5)
    assert ESCAPED not in stats.unpaged_bytes
