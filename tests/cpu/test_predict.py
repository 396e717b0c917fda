"""`torch-lms predict` and `torch-lms eval`: whole images, where they lie, and the metric of them."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from small_data import classes, pair, picture, voc, volume
from train_rig import done, run

from torch_lms_workloads.prediction.padding import cropped, padded
from torch_lms_workloads.training.checkpoints import NAME
from torch_lms_workloads.workload import Bounds

NET = ("unet3d", "--set", "levels=3", "--set", "channels=8", "--size", 32, "--batch", 1)


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint and the data that it was trained with."""
    folder = tmp_path_factory.mktemp("scans")
    pair(folder / "data")
    data = ("--data", folder / "data", "--set", "split=all", "--set", "val_split=all", "--set", "spacing=1.0")
    done("train", folder, *NET, *data, "--steps", 2, "--no-lms", "--checkpoint-dir", folder / "run")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    voc(folder / "data")
    net = ("deeplabv3plus", "--set", "backbone=mobilenetv2_100", "--size", 33, "--batch", 2)
    done("train", folder, *net, "--data", folder / "data", "--steps", 1, "--no-lms", "--checkpoint-dir", folder / "run")
    return folder


def test_a_prediction_lies_where_its_volume_lies(scans: Path, tmp_path: Path) -> None:
    turned = np.array([[0, 0, 1.5, -20], [-0.8, 0, 0, 30], [0, 1.2, 0, 5], [0, 0, 0, 1.0]])
    given = volume(tmp_path / "given.nii.gz", np.random.default_rng(0).random((31, 26, 18)).astype(np.float32), turned)
    output = tmp_path / "made" / "found.nii.gz"
    where = ("--checkpoint", scans / "run" / NAME, "--input", given, "--output", output)
    paged = done("predict", tmp_path, "unet3d", *where, "--limit", "1MB")
    first = np.asarray(nibabel.load(output).dataobj)
    stock = done("predict", tmp_path, "unet3d", *where, "--no-lms")
    found = nibabel.load(output)
    assert np.allclose(found.affine, turned)
    assert found.shape == first.shape == (31, 26, 18)
    assert np.array_equal(first, found.dataobj)
    assert paged["predictions"] == [{"input": str(given), "output": str(output), "certainty": None}]
    assert paged["stats"]["evicted_bytes"] > 0
    assert stock["stats"] is None


def test_pictures_become_palette_pngs_of_their_own_size(pictures: Path, tmp_path: Path) -> None:
    for name, size in (("one.jpg", (47, 35)), ("two.png", (5, 80))):
        picture(tmp_path / "given" / name, *size)
    result = run(
        "predict", "deeplabv3plus", "--checkpoint", pictures / "run" / NAME, "--input", tmp_path / "given",
        "--output", tmp_path / "out",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for name, size in (("one.png", (47, 35)), ("two.png", (5, 80))):
        found = Image.open(tmp_path / "out" / name)
        assert (found.mode, found.size) == ("P", size)
        assert found.getpalette()[3:6] == [128, 0, 0]
        assert f"{tmp_path / 'out' / name} (" in result.output


def test_one_class_for_a_picture_is_told(tmp_path: Path) -> None:
    data = classes(tmp_path / "data")
    net = ("resnet50", "--set", "model=resnet18", "--size", 64, "--batch", 2, "--data", data, "--amp", "bf16")
    done("train", tmp_path, *net, "--steps", 1, "--no-lms", "--checkpoint-dir", tmp_path)
    where = ("resnet50", "--checkpoint", tmp_path / NAME, "--amp", "bf16")
    given = ("--input", data / "val/bee", "--output", tmp_path / "out")
    [found] = done("predict", tmp_path, *where, *given)["predictions"]
    assert found["output"] in ("ant", "bee")
    assert 0.5 <= found["certainty"] <= 1
    measured = done("eval", tmp_path, *where, "--data", data, "--pictures", tmp_path / "pictures")
    assert measured["metric_name"] == "top-1"
    assert measured["metric"] in (0, 0.5, 1)
    assert Image.open(tmp_path / "pictures/ant/1.png").height == 30 + 14


def test_volumes_are_measured_and_shown(scans: Path, tmp_path: Path) -> None:
    data = ("--data", scans / "data", "--checkpoint", scans / "run" / NAME)
    found = done("eval", tmp_path, "unet3d", *data, "--pictures", tmp_path / "pictures")
    assert (found["metric_name"], found["images"]) == ("Dice", 1)
    done("predict", tmp_path, "unet3d", *data[2:], "--input", scans / "data/image.nii.gz", "--output", tmp_path)
    true, classes_found = (
        np.asarray(nibabel.load(path).dataobj) for path in (scans / "data/label.nii.gz", tmp_path / "image.nii.gz")
    )
    shares = [
        2 * ((true == c) & (classes_found == c)).sum() / ((true == c).sum() + (classes_found == c).sum())
        for c in (1, 2)
    ]
    assert found["metric"] == pytest.approx(np.mean(shares))
    assert Image.open(tmp_path / "pictures/image.png").size == (3 * 12 + 2 * 8, 10)


def test_pictures_are_measured_and_shown(pictures: Path, tmp_path: Path) -> None:
    data = ("--data", pictures / "data", "--checkpoint", pictures / "run" / NAME)
    found = done("eval", tmp_path, "deeplabv3plus", *data, "--set", "val_split=train", "--pictures", tmp_path / "p")
    assert (found["metric_name"], found["images"]) == ("mIoU", 2)
    shown = np.asarray(Image.open(tmp_path / "p/a.png"))
    assert shown.shape == (30, 3 * 40 + 2 * 8, 3)
    assert shown[0, 48].tolist() == [128, 0, 0]  # class 1 at the left of the truth
    assert shown[0, 87].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("sides", "bounds"), [((5, 9), Bounds(8, 1, 4)), ((8, 4, 2), Bounds(2, 1, 4))])
def test_padding_is_taken_off_again(sides: tuple[int, ...], bounds: Bounds) -> None:
    image = torch.rand(2, *sides)
    larger = padded(image, bounds)
    assert all(side >= bounds.size and side % bounds.multiple == 0 for side in larger.shape[1:])
    assert torch.equal(cropped(larger[1], sides), image[1])
    corner = tuple(side - 1 for side in sides)
    assert larger[0][tuple(side - 1 for side in larger.shape[1:])] == image[0][corner]
