"""Distributed checkpoints are written within the limit, also beside the training, and equal those of stock PyTorch."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from bits import same_bits
from torch import Tensor, nn

import torch_lms

SIDE, LAYERS = 128, 8
NBYTES = SIDE * SIDE * 4
LIMIT = 3 * LAYERS * NBYTES // 4

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


class Training:
    """Of square layers."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step()

    def step(self) -> None:
        self.model(torch.ones(4, SIDE)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, folder: Path) -> None:
        state = self.state
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    @property
    def tensors(self) -> list[Tensor]:
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*(parameter.detach() for parameter in self.model.parameters()), *states]


def saved(folder: Path) -> list[Tensor]:
    """Save at once, and beside the training; what was trained."""
    training = Training()
    dcp.save(training.state, checkpoint_id=folder / "sync", no_dist=True)
    saving = dcp.async_save(training.state, checkpoint_id=folder / "async", no_dist=True)
    for _ in range(3):
        training.step()
    saving.result()
    return training.tensors


def files_in(folder: Path) -> dict[str, bytes]:
    """With tensors. What else there is has the time in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.distcp"))}


def test_the_files_are_those_of_stock_pytorch(tmp_path: Path) -> None:
    expected = saved(tmp_path / "stock")
    with torch_lms.session(limit=LIMIT, min_size=1024) as lms:
        found = saved(tmp_path / "ours")
        lms.validate()
        stats = lms.stats()
        again = Training(seed=1)
        again.load(tmp_path / "ours" / "async")
        assert same_bits(found, expected)
    assert stats.unpaged_bytes == {}
    assert stats.peak_resident_bytes <= LIMIT + NBYTES  # two threads at once
    files = files_in(tmp_path / "ours")
    assert files == files_in(tmp_path / "stock")
    assert files["sync/__0_0.distcp"] == files["async/__0_0.distcp"]
    stock = Training(seed=1)
    stock.load(tmp_path / "stock" / "sync")
    assert same_bits(again.tensors, stock.tensors)


def dies_while_it_saves(folder: Path) -> None:
    class Dies(dcp.FileSystemWriter):
        def finish(self, *_: Any, **__: Any) -> None:  # before it says that all is written
            os.kill(os.getpid(), signal.SIGKILL)

    torch_lms.enable(limit=LIMIT, min_size=1024)
    training = Training()
    dcp.async_save(training.state, checkpoint_id=folder / "first", no_dist=True).result()
    training.step()
    dcp.async_save(training.state, storage_writer=Dies(folder / "second"), no_dist=True).result()


def test_killed_in_the_midst_of_saving(tmp_path: Path) -> None:
    """The last whole checkpoint is there, and what is not whole is not taken for one."""
    command = [sys.executable, __file__, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    training = Training(seed=1)
    training.load(tmp_path / "first")
    assert same_bits(training.tensors, Training().tensors)
    assert files_in(tmp_path / "second")
    with pytest.raises(dcp.api.CheckpointException, match=r"\.metadata"):
        training.load(tmp_path / "second")


if __name__ == "__main__":
    dies_while_it_saves(Path(sys.argv[1]))
