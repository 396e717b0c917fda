"""A checkpoint of FSDP2's shards is gone on from."""

from pathlib import Path

from train_rig import VOLUMES, close, done, on_two_ranks

MORE = ("--set", "length=3", "--optimizer", "adamw", "--lr-policy", "constant", "--val-every", 2)


def test_shards_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    alone = done("train", tmp_path, *VOLUMES, *MORE, "--batch", 2, "--steps", 2, "--no-lms")
    kept = ("--checkpoint-dir", tmp_path / "run", "--resume", "--parallel", "fsdp", "--no-lms")
    on_two_ranks(tmp_path, *VOLUMES, *MORE, *kept, "--steps", 1)
    both = on_two_ranks(tmp_path, *VOLUMES, *MORE, *kept, "--steps", 2)
    assert both["resumed_from"] == 1
    assert close(both["losses"], alone["losses"])
