"""`torch-lms train` under torchrun, with FSDP2 and LMS."""

from pathlib import Path

from train_rig import VOLUMES, close, done, on_two_ranks

from torch_lms_workloads.training.checkpoints import NAME, read_checkpoint

MORE = ("--set", "length=3", "--optimizer", "adamw", "--steps", 2, "--val-every", 2)


def test_shards_do_what_one_process_does_with_their_batches_together(tmp_path: Path) -> None:
    alone = done("train", tmp_path, *VOLUMES, *MORE, "--batch", 4)
    kept = ("--accumulate", 2, "--checkpoint-dir", tmp_path / "run", "--parallel", "fsdp", "--limit", "2MB")
    together = on_two_ranks(tmp_path, *VOLUMES, *MORE, *kept)
    assert together["stats"]["evicted_bytes"] > 0
    assert close(together["losses"], alone["losses"])
    weights = read_checkpoint(tmp_path / "run" / NAME)["model"]
    assert weights["input_block.conv1.conv.weight"].shape == (8, 1, 3, 3, 3)
    whole = ("unet3d", "--checkpoint", tmp_path / "run" / NAME, "--data", "synthetic")
    assert 0 <= done("eval", tmp_path, *whole, "--no-lms")["metric"] <= 1
