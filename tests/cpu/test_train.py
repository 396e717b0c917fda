"""`torch-lms train`: results, and equality to the bit."""

from pathlib import Path
from typing import Any

import pytest
from train_rig import OBJECTS, PICTURES, VOLUMES, done, run

from torch_lms_workloads.training.checkpoints import NAME

KEYS = {"losses", "metric", "metric_name", "data_rate", "step_s", "stats"}


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ((*VOLUMES, "--set", "deep_supervision=true", "--set", "levels=4"), "5MB"),
        ((*PICTURES, "--amp", "bf16", "--channels-last"), "3MB"),
        ((*OBJECTS, "--accumulate", 2), "28MB"),
    ],
)
def test_a_limit_changes_no_loss(arguments: tuple[Any, ...], limit: str, tmp_path: Path) -> None:
    stock = done("train", tmp_path, *arguments, "--steps", 2, "--no-lms")
    paged = done("train", tmp_path, *arguments, "--steps", 2, "--limit", limit)
    assert stock.keys() >= KEYS
    assert stock["losses"] == paged["losses"]
    assert len(stock["losses"]) == 2
    assert stock["metric"] == paged["metric"]
    assert stock["stats"] is None
    stats = paged["stats"]
    assert stats["demand_bytes"] > 2.5 * stats["limit_bytes"]
    assert stats["evicted_bytes"] > 0


def test_what_is_learnt(tmp_path: Path) -> None:
    found = done("train", tmp_path, *VOLUMES, "--steps", 8, "--optimizer", "adam", "--lr", 0.01, "--val-every", 8)
    losses = [float.fromhex(loss) for loss in found["losses"]]
    assert losses[-1] < 0.8 * losses[0]
    assert found["metric_name"] == "Dice"
    assert 0 <= found["metric"] <= 1
    assert found["data_rate"] == pytest.approx(32**3 / found["step_s"])


def test_accumulated_batches_are_one_large_batch(tmp_path: Path) -> None:
    together = done("train", tmp_path, *VOLUMES, "--steps", 2, "--batch", 2, "--no-lms")
    one_by_one = done("train", tmp_path, *VOLUMES, "--steps", 2, "--accumulate", 2, "--no-lms")
    for a, b in zip(together["losses"], one_by_one["losses"], strict=True):
        assert float.fromhex(a) == pytest.approx(float.fromhex(b), rel=1e-4)


def test_processes_that_read_ahead_change_nothing(tmp_path: Path) -> None:
    few = (*VOLUMES, "--steps", 2, "--val-every", 2, "--limit", "2MB")
    assert done("train", tmp_path, *few)["losses"] == done("train", tmp_path, *few, "--workers", 1)["losses"]


def test_init_takes_what_fits(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    few = [*VOLUMES, "--steps", 1, "--no-lms"]
    done("train", tmp_path, *few, "--checkpoint-dir", folder)
    same = run("train", *few, "--init", folder / NAME)
    other = run("train", *few, "--set", "classes=5", "--init", folder / NAME)
    assert f"{folder / NAME}: 66 of 66 tensors taken\n" in same.output
    assert "64 of 66 tensors taken; as without it: output_block.conv.conv.weight, output_block" in other.output
