"""`torch-lms train` under torchrun, with DistributedDataParallel."""

import subprocess
import sys
from pathlib import Path

from train_rig import VOLUMES, close, done, on_two_ranks

from torch_lms_workloads.training.checkpoints import NAME

MORE = ("--set", "length=3", "--val-every", 2)


def test_ranks_do_what_one_process_does_with_their_batches_together(tmp_path: Path) -> None:
    alone = done("train", tmp_path, *VOLUMES, *MORE, "--batch", 2, "--steps", 3)
    folder = tmp_path / "run"
    kept = (*VOLUMES, *MORE, "--steps", 3, "--limit", "2MB", "--checkpoint-dir", folder, "--resume")
    together = on_two_ranks(tmp_path, *kept)
    assert together["ranks"] == 2
    assert together["stats"]["evicted_bytes"] > 0
    assert close(together["losses"], alone["losses"])
    assert abs(together["metric"] - alone["metric"]) < 0.02
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [NAME, "log.jsonl"]


def test_a_rank_that_fails_ends_all_with_its_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "torch_lms", "train", "unet3d", "--data", str(tmp_path / "nowhere")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode != 0
    assert f"torch-lms: error: {tmp_path / 'nowhere'} is missing" in ended.stderr
