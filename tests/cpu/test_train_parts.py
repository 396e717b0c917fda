"""Parts of the training loop, on cases that can be worked out."""

import json
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from train_rig import done

from torch_lms.errors import UsageError
from torch_lms.runtime import options
from torch_lms_workloads.catalogue.unet3d import unet3d
from torch_lms_workloads.data.about import About
from torch_lms_workloads.training.checkpoints import owned, plain_about
from torch_lms_workloads.training.engines.fsdp import parts
from torch_lms_workloads.training.logs import Log
from torch_lms_workloads.training.memory import is_out_of_memory
from torch_lms_workloads.training.metrics import counting, new_metric
from torch_lms_workloads.training.numa import processors_near
from torch_lms_workloads.training.optimizers import chosen_optimizer
from torch_lms_workloads.training.random_state import deterministic, random_state, set_random_state
from torch_lms_workloads.training.ranks import Ranks, told_by_launcher
from torch_lms_workloads.training.schedules import constant, poly
from torch_lms_workloads.workload import MetricName


@pytest.mark.parametrize("name", ["mIoU", "Dice", "top-1"])
@pytest.mark.parametrize("batches", [1, 3])
def test_metrics_count_all_batches_together(name: MetricName, batches: int) -> None:
    # not at the top: torch_lms_workloads has to be imported before
    from torchmetrics.functional.classification import (
        multiclass_accuracy,
        multiclass_f1_score,
        multiclass_jaccard_index,
    )

    torch.manual_seed(0)
    shape = (6,) if name == "top-1" else (6, 10, 10)
    found, true = (torch.randint(4, shape) for _ in range(2))
    if name == "mIoU":
        true[0] = 255
    metric = new_metric(name, 5, 255 if name == "mIoU" else None)
    for pair in zip(found.chunk(batches), true.chunk(batches), strict=True):
        metric.update(*pair)
    expected = {
        "mIoU": lambda: multiclass_jaccard_index(found, true, 5, ignore_index=255),
        "Dice": lambda: multiclass_f1_score(found, true, 5, average="none")[1:4].mean(),
        "top-1": lambda: multiclass_accuracy(found, true, 5, average="micro"),
    }[name]()
    assert float(metric.compute()) == pytest.approx(float(expected))


def test_counting_leaves_the_mode_as_it_was() -> None:
    with deterministic(True):
        with counting():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_learning_rates() -> None:
    assert [constant(0.1, step, 4) for step in (0, 3)] == [0.1, 0.1]
    assert [poly(0.1, step, 4) for step in (0, 2, 4)] == pytest.approx([0.1, 0.1 * 0.5**0.9, 0])


@pytest.mark.parametrize(
    ("name", "lr", "settings"),
    [
        (None, None, dict(unet3d.optimizer.settings)),
        ("SGD", 0.5, {**unet3d.optimizer.settings, "lr": 0.5}),
        ("adamw", None, {"lr": 1e-3}),
        ("AdamW", 0.5, {"lr": 0.5}),
    ],
)
def test_optimizers(name: str | None, lr: float | None, settings: dict[str, Any]) -> None:
    choice = chosen_optimizer(unet3d, name, lr)
    assert choice.settings == settings
    assert choice([nn.Parameter(torch.ones(1))]).param_groups[0]["lr"] == settings["lr"]


def test_all_random_numbers_go_on(tmp_path: Path) -> None:
    import random

    def drawn() -> list[float]:
        return [float(torch.rand(1)), float(np.random.rand()), random.random()]

    torch.save(random_state(), tmp_path / "state.pt")
    expected = drawn()
    set_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert drawn() == expected


def test_a_log_forgets_what_will_be_done_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    log = Log(tmp_path, 2)
    log.write(3, {"loss": 0.5})
    log.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1},
        {"step": 2},
        {"step": 3, "loss": 0.5},
    ]


def test_without_a_folder_nothing_is_logged() -> None:
    log = Log(None, 0)
    log.write(1, {"loss": 0.5})
    log.close()


def test_processors_near_a_device(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    node = tmp_path / "sys/devices/system/node/node1"
    for folder in (device, node):
        folder.mkdir(parents=True)
    (node / "cpulist").write_text("4-6,9\n")
    assert processors_near("0000:3b:00.0", tmp_path) is None
    (device / "numa_node").write_text("-1\n")
    assert processors_near("0000:3b:00.0", tmp_path) is None
    (device / "numa_node").write_text("1\n")
    assert processors_near("0000:3b:00.0", tmp_path) == (1, {4, 5, 6, 9})


def test_a_launcher_tells_who_is_who() -> None:
    assert told_by_launcher({}) == Ranks(0, 1, 0)
    assert told_by_launcher({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == Ranks(5, 8, 1)


@pytest.mark.parametrize(("told", "share"), [("", 1), ("4", 4), ("0", 1), ("x", 1)])
def test_ranks_of_a_machine_share_host_memory(told: str, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert options._ranks_here() == share


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError(), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("other"), False),
    ],
)
def test_what_running_out_of_memory_looks_like(error: BaseException, is_it: bool) -> None:
    assert is_out_of_memory(error) is is_it


def test_what_lies_in_a_file_is_copied() -> None:
    value = {"a": [torch.ones(2), 3], "b": "text"}
    copy = owned(value)
    assert torch.equal(copy["a"][0], value["a"][0])
    assert copy["a"][0] is not value["a"][0]
    assert [*copy["a"][1:], copy["b"]] == [3, "text"]


def test_parts_for_fsdp_are_large_and_apart() -> None:
    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Sequential(nn.Linear(1100, 1100), nn.ReLU(), nn.Sequential(nn.Linear(1100, 1100)))

    model = nn.Sequential(Row(), nn.Linear(2, 2))
    assert parts(model) == [model[0]]


def test_about_comes_back_from_a_file() -> None:
    about = About("made", "segmentation", ("a", "b"), colours=((0, 0, 0), (1, 2, 3)))
    assert About(**plain_about(about)) == about


def test_an_unknown_optimizer() -> None:
    with pytest.raises(UsageError, match="--optimizer must be one of"):
        chosen_optimizer(unet3d, "lbfgs", None)


ROOT = Path(__file__).parents[2]
COMMANDS = [
    line
    for name in ("README.md", "docs/commands.md", "docs/workloads.md", "docs/adding-a-workload.md")
    for line in (ROOT / name).read_text().splitlines()
    if re.match(r"torch-lms (train|predict|eval) |torchrun .*-m torch_lms train ", line)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_in_the_documents_have_such_options(line: str) -> None:
    _, name, *arguments = shlex.split(re.sub(r"^torchrun .*-m torch_lms", "torch-lms", line), comments=True)
    command = next(point.load() for point in entry_points(group="torch_lms.commands") if point.name == name)
    assert command.make_context(name, arguments).params


def test_every_option_of_train_is_explained() -> None:
    document = (ROOT / "docs" / "workloads.md").read_text()
    [train] = [point.load() for point in entry_points(group="torch_lms.commands") if point.name == "train"]
    for option in (parameter for parameter in train.params if parameter.param_type_name == "option"):
        assert re.search(rf"^\|.*`{option.opts[0]}\b.*\|", document, re.MULTILINE), option.opts[0]


def test_a_workload_of_ones_own(tmp_path: Path) -> None:
    thin = f"{ROOT / 'examples' / 'own_workload.py'}:thin"
    found = done("train", tmp_path, thin, "--data", "synthetic", "--set", "length=2", "--size", 32, "--steps", 2)
    assert len(found["losses"]) == 2
    assert found["metric_name"] == "mIoU"
