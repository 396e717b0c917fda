"""``%load_ext torch_lms``, and the notebook among the examples, in a kernel's own shell."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torch_lms
from torch_lms.units import format_bytes

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"

MODEL = """
import torch, torch_lms
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for _ in range(steps):
        loss = model(torch.ones(64, 1024)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    pytest.importorskip("IPython", reason="IPython is not installed")
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    yield InteractiveShell.instance()
    if torch_lms.is_enabled():
        torch_lms.disable()
    InteractiveShell.clear_instance()


def ran(shell: Any, cell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What running ``cell`` printed."""
    shell.run_cell(cell, store_history=True).raise_error()
    return capsys.readouterr().out


def line_of(printed: str) -> str:
    (line,) = [line for line in printed.splitlines() if line.startswith("LMS: ")]
    return line


def test_a_line_after_each_cell_while_lms_is_on(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "LMS" not in ran(shell, "%load_ext torch_lms", capsys)
    assert "LMS" not in ran(shell, MODEL, capsys)
    assert line_of(ran(shell, "torch_lms.enable(limit='14MB')", capsys)).startswith("LMS: out 0 B, in 0 B")
    moved = line_of(ran(shell, "train(3)", capsys))
    stats = torch_lms.stats()
    assert stats.evicted_bytes > 0
    assert f"out {format_bytes(stats.evicted_bytes)}" in moved
    assert f"peak so far {format_bytes(stats.peak_resident_bytes)}, limit 14 MB" in moved
    assert "out 0 B, in 0 B, waited 0" in line_of(ran(shell, "1", capsys)), "a line is of its own cell"
    ran(shell, "torch_lms.disable()", capsys)
    assert "LMS" not in ran(shell, "train(1)", capsys)


def test_outputs_that_hold_tensors_are_named(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ran(shell, "%load_ext torch_lms\nimport torch, torch_lms\ntorch_lms.enable(limit='14MB')", capsys)
    held = ran(shell, "{'map': torch.zeros(1 << 20)}", capsys)
    name = f"Out[{shell.execution_count - 1}]"
    assert f"outputs hold {name} 4.19 MB" in line_of(held)
    assert torch_lms.stats().held_outputs == {name: 4 << 20}
    assert f"outputs hold   {name} 4.19 MB" in str(torch_lms.stats())
    shell.user_ns["Out"].clear()
    assert torch_lms.stats().held_outputs == {"_": 4 << 20}
    assert "outputs" not in line_of(ran(shell, "%reset -f out", capsys))
    assert "outputs" not in line_of(ran(shell, "torch.zeros(1 << 20);", capsys)), "a semicolon holds nothing"


def test_a_cell_that_raises_has_its_line_and_unloading_ends_them(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(shell, "%load_ext torch_lms\nimport torch_lms\ntorch_lms.enable(limit='14MB')", capsys)
    assert not shell.run_cell("1 / 0").success
    assert line_of(capsys.readouterr().out)
    ran(shell, "%reload_ext torch_lms", capsys)
    assert line_of(ran(shell, "1", capsys)), "one, not two"
    ran(shell, "%unload_ext torch_lms", capsys)
    assert "LMS" not in ran(shell, "1", capsys)


def test_the_example_runs_twice_in_one_kernel(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [
        "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    losses, limits = [], []
    for limit in ("30MB", "40MB"):
        for cell in cells:
            ran(shell, cell.replace('"30MB"', f'"{limit}"'), capsys)
        losses.append(shell.user_ns["losses"])
        limits.append(torch_lms.stats().limit_bytes)
        assert torch_lms.stats().evicted_bytes > 0
        assert torch_lms.stats().peak_resident_bytes <= limits[-1]
    assert losses[0] == losses[1]
    assert limits == [30_000_000, 40_000_000]
