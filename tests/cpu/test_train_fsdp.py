"""`torch-lms train` under torchrun, with FSDP2."""

from pathlib import Path

from train_rig import VOLUMES, close, done, on_two_ranks

from torch_lms_workloads.training.checkpoints import NAME, read_checkpoint

MORE = ("--set", "length=3", "--optimizer", "adamw", "--lr-policy", "constant")


def test_shards_do_what_one_process_does_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    alone = done("train", tmp_path, *VOLUMES, *MORE, "--batch", 4, "--steps", 3)
    kept = (*VOLUMES, *MORE, "--accumulate", 2, "--checkpoint-dir", tmp_path / "run", "--resume", "--parallel", "fsdp")
    first = on_two_ranks(tmp_path, *kept, "--steps", 1, "--limit", "2MB")
    both = on_two_ranks(tmp_path, *kept, "--steps", 3, "--no-lms")
    assert first["stats"]["evicted_bytes"] > 0
    assert both["resumed_from"] == 1
    assert close(both["losses"], alone["losses"])
    weights = read_checkpoint(tmp_path / "run" / NAME)["model"]
    assert all(weight.shape for name, weight in weights.items() if name.endswith("weight"))
    whole = ("unet3d", "--checkpoint", tmp_path / "run" / NAME, "--data", "synthetic")
    assert 0 <= done("eval", tmp_path, *whole, "--no-lms")["metric"] <= 1
