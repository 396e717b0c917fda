"""Volumes: how they are turned, respaced and cut."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_data
import torch
from small_data import volume

from torch_lms_workloads.data.draws import Purpose, generator
from torch_lms_workloads.data.nifti import pairs_in
from torch_lms_workloads.data.open import open_data, open_whole
from torch_lms_workloads.data.predictions import NiftiGrid
from torch_lms_workloads.data.volumes import volume_crop


def draw(index: int) -> np.random.Generator:
    return generator(Purpose.SAMPLE, 0, 0, index)


@pytest.mark.parametrize("size", [5, 12, 31])
def test_labels_stay_where_they_belong(size: int) -> None:
    """Most voxels have the value of their label; labels are never mixed."""
    labels = torch.randint(4, (4, 3, 5)).repeat_interleave(6, 0).repeat_interleave(6, 1).repeat_interleave(6, 2)
    exact = 0
    for index in range(30):
        image, target = volume_crop(labels.unsqueeze(0) * 10.0, labels, size, draw(index))
        assert image.shape == (1, *target.shape) == (1, size, size, size)
        assert set(target.unique().tolist()) <= {0, 1, 2, 3}
        exact += int((abs(image[0] - 10 * target) < 1e-3).sum())
    assert exact > 0.2 * 30 * size**3


def test_the_middle_is_taken_as_it_is() -> None:
    labels = torch.arange(6 * 8 * 4).view(6, 8, 4)
    image, target = volume_crop(labels.unsqueeze(0).float(), labels, 4, None)
    assert torch.equal(target, labels[1:5, 2:6])
    assert torch.equal(image[0], target.float())


def test_what_is_rare_is_often_in_the_middle() -> None:
    labels = torch.zeros(60, 60, 60, dtype=torch.long)
    labels[50, 5, 30] = 1
    seen = [volume_crop(labels.unsqueeze(0).float(), labels, 8, draw(index))[1].any() for index in range(90)]
    assert 18 < sum(map(int, seen)) < 45


def test_axes_go_right_forward_and_up(tmp_path: Path) -> None:
    values = np.zeros((4, 5, 6), np.int16)
    values[0, 0, 0] = 1  # the corner that lies most to the right, at the back, below
    affine = np.diag([-1.0, 1.0, 1.0, 1.0])
    small_data.volume(tmp_path / "image.nii.gz", values + 5, affine)
    small_data.volume(tmp_path / "label.nii.gz", values.astype(np.uint8), affine)
    [whole] = open_whole(tmp_path, split="all")
    assert whole.target is not None
    assert whole.target.nonzero().tolist() == [[3, 0, 0]]
    assert whole.image.argmax() == whole.target.argmax()


def test_spacing_is_that_of_the_axes_after_turning(tmp_path: Path) -> None:
    affine = np.array([[0, 0, 3.0, 0], [2.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1]])
    sides = (10, 12, 6)  # forward by 2 mm, up by 1 mm, right by 3 mm
    volume(tmp_path / "image.nii.gz", np.random.default_rng(0).integers(1, 99, sides).astype(np.int16), affine)
    volume(tmp_path / "label.nii.gz", np.ones(sides, np.uint8), affine)
    [whole] = open_whole(tmp_path, split="all", spacing=(1.5, 1.0, 4.0))
    assert whole.image.shape == (1, 11, 19, 4)
    assert isinstance(whole.prediction, NiftiGrid)
    assert np.allclose(np.diag(whole.prediction.seen_affine)[:3], (1.5, 1.0, 4.0))


@pytest.mark.parametrize(("modality", "outside"), [("MR", True), ("CT", False), ("ct", False)])
def test_what_is_outside_does_not_count_in_mr(tmp_path: Path, modality: str, outside: bool) -> None:
    values = np.zeros((8, 8, 8), np.int16)
    values[2:6] = np.random.default_rng(0).integers(100, 200, (4, 8, 8))
    volume(tmp_path / "image.nii.gz", values)
    volume(tmp_path / "label.nii.gz", (values > 150).astype(np.uint8))
    image = open_whole(tmp_path, split="all", modality=modality)[0].image
    inside = image[:, 2:6] if outside else image
    assert inside.mean().item() == pytest.approx(0, abs=1e-5)
    assert inside.std().item() == pytest.approx(1, abs=0.01)
    assert (image[0, 0, 0, 0] == 0) == outside


@pytest.mark.parametrize(
    ("folders", "options"),
    [
        (("imagesTr/case.nii.gz", "labelsTr/case.nii.gz"), {}),
        (("images/case.nii", "labels/case.nii"), {}),
        (("one/image.nii.gz", "one/label.nii.gz"), {}),
        (("case.nii.gz", "case_mask.nii.gz"), {}),
        (("train/case.nii.gz", "train/case_gt.nii.gz"), {"split": "train"}),
    ],
)
def test_pairs_are_found_however_named(tmp_path: Path, folders: tuple[str, str], options: Mapping[str, Any]) -> None:
    values = np.random.default_rng(0).integers(1, 3, (6, 6, 6)).astype(np.int16)
    volume(tmp_path / folders[0], values)
    volume(tmp_path / folders[1], values.astype(np.uint8))
    volume(tmp_path / folders[1].replace("case", "._case").replace("label.", "._label."), values)
    data = open_whole(tmp_path, **{"split": "all", **options})
    assert len(data) == 1
    assert data.about.names == ("background", "class 1", "class 2")


def test_of_several_images_in_a_folder_each_has_the_labels_that_end_alike(tmp_path: Path) -> None:
    for number in (1, 2):
        volume(tmp_path / f"image_{number}.nii.gz", np.ones((3, 3, 3), np.int16))
        volume(tmp_path / f"label_{number}.nii.gz", np.ones((3, 3, 3), np.uint8))
    pairs = [(pair.image.name, pair.labels.name) for pair in pairs_in(tmp_path, None) if pair.labels]
    assert pairs == [("image_1.nii.gz", "label_1.nii.gz"), ("image_2.nii.gz", "label_2.nii.gz")]


def test_several_volumes_of_one_file_are_channels(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(1, 99, (6, 7, 8, 2)).astype(np.int16)
    volume(tmp_path / "image.nii.gz", values)
    volume(tmp_path / "label.nii.gz", np.ones((6, 7, 8, 1), np.uint8))
    data = open_data(tmp_path, size=6, split="all")
    assert data.about.channels == 2
    assert data[0][0].shape == (2, 6, 6, 6)


def test_the_decathlon_says_what_its_data_are(tmp_path: Path) -> None:
    root = small_data.decathlon(tmp_path)
    data = open_data(root, size=8)
    assert data.about.names == ("background", "organ", "tumour")
    assert data[0][0].shape == (1, 8, 8, 8)
    assert [whole.name for whole in open_whole(root)] == ["case_4"]
    assert len(data) == 4


def test_a_list_for_validation_goes_before_our_own(tmp_path: Path) -> None:
    entry = {"image": "imagesTr/case_0.nii.gz", "label": "labelsTr/case_0.nii.gz"}
    root = small_data.decathlon(tmp_path, validation=[entry])
    assert [len(open_whole(root, split=split)) for split in ("train", "val", "all")] == [5, 1, 5]
