"""Data sets on real files: what comes out agrees with what their makers wrote."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from small_data import picture, real

from torch_lms_workloads.data.nifti import pairs_in
from torch_lms_workloads.data.open import open_data, open_whole
from torch_lms_workloads.data.single import open_file

AORTA = {"label": "label_aorta", "split": "all"}


@pytest.mark.parametrize("size", [65, 513])
@pytest.mark.parametrize(
    ("name", "kind", "classes", "options"),
    [
        ("voc2012", "voc", 21, {"split": "train"}),
        ("voc2012", "voc", 21, {"split": "val"}),
        ("cityscapes_small", "cityscapes", 19, {"split": "val", "augment": True}),
        ("imagenet_folder", "class-folders", 4, {"split": "train"}),
        ("imagenet_folder", "class-folders", 4, {"split": "val"}),
    ],
)
def test_pictures_come_at_the_size_asked_for(
    name: str, kind: str, classes: int, options: Mapping[str, Any], size: int
) -> None:
    data = open_data(real(name), size=size, **options)
    assert (data.about.kind, data.about.classes, data.about.channels) == (kind, classes, 3)
    for image, target in data:
        assert image.shape == (3, size, size)
        assert image.dtype == torch.float32
        assert target.shape == ((size, size) if data.about.task == "segmentation" else ())
        assert target.dtype == torch.int64
        assert ((target < classes) | (target == 255)).all()
        assert abs(image.mean()) < 2
        assert 0.2 < image.std() < 2


@pytest.mark.parametrize(("options", "size"), [({}, 32), ({"spacing": 2.0}, 96)])
@pytest.mark.parametrize(("name", "chosen"), [("medical/sct", {"split": "all"}), ("medical/totalseg_aorta", AORTA)])
def test_volumes_come_at_the_size_asked_for(
    name: str, chosen: Mapping[str, Any], options: Mapping[str, Any], size: int
) -> None:
    data = open_data(real(name), size=size, **chosen, **options)
    assert (data.about.kind, data.about.classes, data.about.channels) == ("nifti", 2, 1)
    image, target = data[(3, 0)]
    assert image.shape == (1, size, size, size)
    assert target.shape == (size, size, size)
    assert (type(image), image.dtype, target.dtype) == (torch.Tensor, torch.float32, torch.int64)


def test_a_voc_prediction_is_written_as_voc_has_its_masks(tmp_path: Path) -> None:
    folder = real("voc2012")
    for whole in open_whole(folder, split="trainval"):
        written = Image.open(whole.prediction.write(whole.target, tmp_path / whole.name))
        official = Image.open(folder / "SegmentationClass" / f"{whole.name}.png")
        assert np.array_equal(written, official)
        assert whole.image.shape == (3, official.height, official.width)
    assert written.getpalette() == Image.open(folder / "SegmentationClass/2007_000033.png").getpalette()


def test_cityscapes_classes_are_its_own_train_ids() -> None:
    folder = real("cityscapes_small")
    [whole] = open_whole(folder)
    own = Image.open(folder / "gtFine/val" / f"{whole.name}_gtFine_labelTrainIds.png")
    assert whole.target is not None
    assert (whole.target.numpy() == np.asarray(own)).mean() > 0.995  # this sample's files were made small one by one


def test_classes_have_one_number_in_all_splits() -> None:
    folder = real("imagenet_folder")
    train, val = (open_whole(folder, split=split) for split in ("train", "val"))
    assert train.about.names == val.about.names == ("bird", "cat", "dog", "monkey")
    assert [int(whole.target) for whole in val] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("classes", "count", "can"),
    [("categories", 61, "Glass bottle"), ("supercategories", 29, "Bottle"), ("litter", 2, "litter")],
)
def test_taco_outlines_cover_what_its_annotations_say(tmp_path: Path, classes: str, count: int, can: str) -> None:
    source = real("taco") / "data" / "annotations.json"
    (tmp_path / "annotations.json").symlink_to(source)
    first = json.loads(source.read_bytes())["images"][0]
    picture(tmp_path / first["file_name"], first["width"], first["height"], value="grey")
    with pytest.warns(UserWarning, match=r"1499 of 1500 pictures are missing, first of all .*000008.jpg; they are"):
        data = open_whole(tmp_path, split="all", classes=classes, skip_missing=True)
    [whole] = data
    assert data.about.classes == count
    assert whole.target is not None
    covered = int((whole.target == data.about.names.index(can)).sum())
    assert covered == pytest.approx(403954, rel=0.01)  # the area of the picture's only annotation


@pytest.mark.parametrize("name", ["t1w", "t2"])
def test_labels_of_a_volume_go_back_to_where_they_came_from(tmp_path: Path, name: str) -> None:
    """These two are stored along different axes."""
    folder = real("medical/sct")
    [whole] = [whole for whole in open_whole(folder, split="all") if whole.name == name]
    written = nibabel.load(whole.prediction.write(whole.target, tmp_path / name))
    manual = nibabel.load(folder / f"{name}_seg-manual.nii.gz")
    assert np.array_equal(written.dataobj, manual.dataobj)
    assert np.allclose(written.affine, manual.affine, atol=1e-3)


@pytest.mark.parametrize("spacing", [1.5, (1.2, 2.0, 1.0)])
def test_respaced_labels_go_back_nearly(tmp_path: Path, spacing: Any) -> None:
    folder = real("medical/totalseg_aorta")
    with pytest.warns(UserWarning, match="one sample, which is for training and for validation"):
        [whole] = open_whole(folder, label="label_aorta", spacing=spacing, modality="CT")
    assert whole.target is not None
    assert whole.prediction is not None
    written = nibabel.load(whole.prediction.write(whole.target, tmp_path / "aorta"))
    true = np.asarray(nibabel.load(folder / "label_aorta.nii.gz").dataobj)
    found = np.asarray(written.dataobj)
    assert found.shape == true.shape
    assert 2 * (true * found).sum() / (true.sum() + found.sum()) > 0.9


def test_labels_are_paired_by_name() -> None:
    pairs = pairs_in(real("medical/sct"), None)
    assert [(pair.image.name, pair.labels.name) for pair in pairs if pair.labels] == [
        ("t1w.nii.gz", "t1w_seg-manual.nii.gz"),
        ("t2.nii.gz", "t2_seg-manual.nii.gz"),
    ]


def test_three_labels_are_counted() -> None:
    assert open_whole(real("medical/totalseg_aorta"), label="lumen", split="all").about.classes == 3


def test_files_alone_are_read_at_their_own_size() -> None:
    pictures = open_whole(real("voc2012")).about
    photograph = open_file(real("large") / "berlin_01.jpg", about=pictures)
    assert photograph.image.shape == (3, 2448, 3264)
    assert photograph.target is None
    volumes = open_whole(real("medical/sct"), split="all").about
    assert open_file(real("medical/sct") / "t2.nii.gz", about=volumes).image.shape == (1, 52, 60, 55)
