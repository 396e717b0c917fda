"""`torch-lms train`: checkpoints, and going on from them."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from train_rig import OBJECTS, VOLUMES, done

from torch_lms.errors import LmsError
from torch_lms_workloads.training.checkpoints import NAME, read_checkpoint, write_whole


def test_a_killed_training_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    arguments = [*OBJECTS, "--steps", "6", "--val-every", "2", "--limit", "40MB"]
    whole = done("train", tmp_path, *arguments)
    folder = tmp_path / "run"
    kept = ["--checkpoint-dir", str(folder)]
    process = subprocess.Popen([sys.executable, "-m", "torch_lms", "train", *arguments, *kept])
    until(lambda: logged(folder)[-1:] == [3])
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    resumed = done("train", tmp_path, *arguments, *kept, "--resume")
    assert resumed["resumed_from"] == 2
    assert resumed["losses"] == whole["losses"]
    assert resumed["metric"] == whole["metric"]
    assert resumed["stats"]["unpaged_bytes"] == whole["stats"]["unpaged_bytes"]
    assert logged(folder) == [1, 2, 2, 3, 4, 4, 5, 6, 6]  # at every second step the metric, too


def until(condition: Any) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("waited in vain")


def logged(folder: Path) -> list[int]:
    path = folder / "log.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.is_file() else []


def test_resume_begins_where_there_is_nothing_and_has_nothing_to_do_at_the_end(tmp_path: Path) -> None:
    arguments = [*VOLUMES, "--steps", 2, "--val-every", 2, "--checkpoint-dir", tmp_path / "new" / "run", "--resume"]
    first = done("train", tmp_path, *arguments)
    again = done("train", tmp_path, *arguments)
    assert (first["resumed_from"], again["resumed_from"]) == (0, 2)
    assert first["losses"] == again["losses"]
    assert first["metric"] == again["metric"]
    assert (tmp_path / "new/run/tensorboard").is_dir() == (find_spec("tensorboard") is not None)


def test_a_constant_rate_can_be_trained_longer(tmp_path: Path) -> None:
    arguments = [*VOLUMES, "--lr-policy", "constant", "--val-every", 9, "--no-lms"]
    whole = done("train", tmp_path, *arguments, "--steps", 3)
    kept = ("--checkpoint-dir", tmp_path / "run", "--resume")
    done("train", tmp_path, *arguments, "--steps", 2, *kept)
    assert done("train", tmp_path, *arguments, "--steps", 3, *kept)["losses"] == whole["losses"]


def test_a_checkpoint_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / NAME
    write_whole({"step": 1}, path)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(LmsError, match=r"cannot be written .*free some space"):
        write_whole({"step": 2}, path)
    assert torch.load(path) == {"step": 1}
    assert os.listdir(tmp_path) == [NAME]


def test_what_a_checkpoint_holds(tmp_path: Path) -> None:
    done("train", tmp_path, *VOLUMES, "--steps", 1, "--no-lms", "--checkpoint-dir", tmp_path)
    content = read_checkpoint(tmp_path / NAME)
    assert content["recipe"]["workload"] == "unet3d"
    assert content["recipe"]["options"]["classes"] == 3
    assert content["about"]["names"] == ("background", "class 1", "class 2")
    assert content["step"] == len(content["losses"]) == 1
