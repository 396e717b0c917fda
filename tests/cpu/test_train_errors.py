"""What `torch-lms train`, `predict` and `eval` say when they cannot."""

from pathlib import Path

import pytest
import torch
from small_data import classes, pair, picture, voc, volume
from train_rig import VOLUMES, done, refused

from torch_lms_workloads.commands import out_of_memory
from torch_lms_workloads.training.checkpoints import NAME
from torch_lms_workloads.training.stepper import Stepper

MADE = ("--data", "synthetic")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    done("train", folder, *VOLUMES, "--steps", 1, "--no-lms", "--checkpoint-dir", folder)
    return folder / NAME


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("unet", *MADE), "there is no workload 'unet' (did you mean unet3d?)"),
        (("gpt", *MADE), "gpt cannot be trained here"),
        (("mine.py:number", *MADE), "mine.py:number is int: expected a function"),
        (("mine.py:function", *MADE), "mine.py:function is function: expected a torch_lms_workloads.workload.Workload"),
        (("unet3d",), "Missing option '--data'"),
        (("unet3d", "--data", "nowhere"), "nowhere is missing: give the folder of a data set"),
        (("unet3d", "--data", "classes"), "unet3d takes data for segmentation, of 3 dimensions and 1 channel; classes"),
        (("resnet50", "--data", "scans"), "takes data for classification, of 2 dimensions and 3 channels; scans has"),
        (("unet3d", *MADE, "--size", 40), "unet3d needs a size that is a multiple of 16"),
        (("deeplabv3plus", "--data", "voc", "--batch", 1), "deeplabv3plus needs a batch of at least 2; got 1"),
        (("unet3d", *MADE, "--set", "colour=red"), "--set takes classes, levels, channels, deep_supervision of unet3d"),
        (("unet3d", *MADE, "--set", "colour"), "--set takes NAME=VALUE; got 'colour'"),
        (("unet3d", "--data", "scans", "--set", "val_split=test"), "split must be one of train, val, all; got 'test'"),
        (("unet3d", *MADE, "--optimizer", "sdg"), "--optimizer must be one of adadelta"),
        (("unet3d", *MADE, "--steps", 1, "--epochs", 1), "--steps and --epochs exclude each other"),
        (("unet3d", *MADE, "--amp", "fp16"), "--amp fp16 needs a GPU: take bf16"),
        (("unet3d", *MADE, "--inexact", "--deterministic"), "with --inexact operations may be rounded in another way"),
        (("unet3d", *MADE, "--resume"), "--resume needs the --checkpoint-dir to go on from"),
        (("unet3d", *MADE, "--checkpoint-dir", "mine.py"), "--checkpoint-dir mine.py is no folder: name another"),
        (("unet3d", *MADE, "--lr", 0), "Invalid value for '--lr'"),
        ((*VOLUMES, "--steps", 1, "--limit", "lots"), "limit must be"),
        ((*VOLUMES, "--steps", 1, "--init", "nowhere.pt"), "nowhere.pt is missing: give a checkpoint"),
        ((*VOLUMES, "--steps", 1, "--init", "mine.py"), "mine.py cannot be read ("),
        (
            (*VOLUMES, "--steps", 1, "--init", "other.pt"),
            "none of its 1 tensors has a name and a shape of this network",
        ),
        ((*VOLUMES, "--steps", 9, "--lr", 1e30), "the loss is nan at step 2: lower --lr"),
    ],
)
def test_train(arguments: tuple[object, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("number = 3\ndef function(): ...\n")
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pt")
    classes(tmp_path / "classes")
    voc(tmp_path / "voc")
    pair(tmp_path / "scans" / "one")
    pair(tmp_path / "scans" / "two")
    assert message in refused("train", *arguments)


def test_a_checkpoint_is_not_overwritten(checkpoint: Path) -> None:
    told = refused("train", *VOLUMES, "--steps", 1, "--checkpoint-dir", checkpoint.parent)
    assert f"{checkpoint} is there already, of step 1: go on from it with --resume, or name another folder" in told


def test_another_recipe_is_not_gone_on_with(checkpoint: Path) -> None:
    kept = ("--checkpoint-dir", checkpoint.parent, "--resume")
    told = refused("train", *VOLUMES, "--steps", 2, "--lr", 0.5, *kept)
    assert f"{checkpoint} cannot be resumed so: steps was 1 and is 2; lr was 0.01 and is 0.5." in told


def test_out_of_memory_names_the_option_and_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> float:
        raise torch.OutOfMemoryError("tried to allocate 5.00 GiB")

    monkeypatch.setattr(Stepper, "__call__", fails)
    monkeypatch.setattr(out_of_memory, "room_bytes", lambda device: 40_000_000)
    told = refused("train", *VOLUMES, "--steps", 1, "--no-lms")
    assert "out of memory without LMS, at size 32, batch 1: omit --no-lms, with it sizes up to " in told
    assert "; without it sizes up to " in told
    assert "(tried to allocate 5.00 GiB)" in told


def test_other_errors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> float:
        raise RuntimeError("something else")

    monkeypatch.setattr(Stepper, "__call__", fails)
    assert refused("train", *VOLUMES, "--steps", 1, "--no-lms").endswith(" something else")


@pytest.mark.parametrize(
    ("given", "output", "message"),
    [
        ("nowhere.nii.gz", "out", "nowhere.nii.gz is missing: give a file, or a folder of files, that end in .nii.gz"),
        ("photo.png", "out", "photo.png: this network takes files that end in .nii.gz, .nii: convert it"),
        ("empty", "out", "empty is an empty list: expected files that end in .nii.gz, .nii"),
        ("scans", "photo.png", "--output photo.png is no folder: name another"),
        ("channels.nii", "out", "channels.nii has 2 channels, 1 are expected"),
    ],
)
def test_predict(
    given: str, output: str, message: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    picture(tmp_path / "photo.png")
    pair(tmp_path / "scans")
    volume(tmp_path / "channels.nii", torch.rand(8, 8, 8, 2).numpy())
    assert message in refused("predict", "unet3d", "--checkpoint", checkpoint, "--input", given, "--output", output)


def test_checkpoints_of_something_else(checkpoint: Path, tmp_path: Path) -> None:
    torch.save({"model": {}}, tmp_path / "other.pt")
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(checkpoint.read_bytes()[:5000])
    rest = ("--input", checkpoint, "--output", tmp_path)
    assert "is a checkpoint of unet3d, not of gscnn" in refused("predict", "gscnn", "--checkpoint", checkpoint, *rest)
    for path, told in ((tmp_path / "other.pt", "is no checkpoint of"), (damaged, "cannot be read (")):
        assert f"{path} {told}" in refused("predict", "unet3d", "--checkpoint", path, *rest)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "classes=5"), "synthetic has 5 classes and"),
        (("--set", "levels=4"), "levels of the network is the checkpoint's: omit it"),
        (("--pictures", __file__), "is no folder: name another"),
    ],
)
def test_eval(arguments: tuple[str, ...], message: str, checkpoint: Path) -> None:
    assert message in refused("eval", "unet3d", *MADE, "--checkpoint", checkpoint, *arguments)
