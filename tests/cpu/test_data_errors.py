"""What is wrong with data is said with the file's name and the remedy."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_data
from small_data import mask, picture, truncate, volume
from torch import zeros

from torch_lms.errors import UsageError
from torch_lms_workloads.data.batches import training_batches
from torch_lms_workloads.data.open import open_data, open_whole
from torch_lms_workloads.data.predictions import PalettePng
from torch_lms_workloads.data.single import open_file

Break = Callable[[Path], Any]


def read(root: Path, **options: Any) -> None:
    """Everything."""
    for _ in open_data(root, size=8, **options):
        pass


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("harm", "options", "message"),
    [
        (lambda root: truncate(root / "JPEGImages/a.jpg"), {}, r"a\.jpg cannot be read, it is truncated .*: fetch it"),
        (lambda root: truncate(root / "SegmentationClass/a.png"), {}, r"a\.png cannot be read, it is truncated"),
        (lambda root: (root / "JPEGImages/a.jpg").write_text("no"), {}, r"a\.jpg cannot be read.* or no picture"),
        (lambda root: (root / "JPEGImages/b.jpg").unlink(), {}, r"b\.jpg is missing: .*train\.txt names it; .*list"),
        (lambda root: (root / "SegmentationClass/b.png").unlink(), {}, r"b\.png is missing: .*train\.txt names it"),
        (
            lambda root: mask(root / "SegmentationClass/a.png", 30, 40),
            {},
            r"a\.png is 30x40 and its image 40x30: make the mask anew",
        ),
        (
            lambda root: mask(root / "SegmentationClass/a.png", label=21),
            {},
            r"a\.png has labels that are no class: 21; there are 0 to 20, and 255: correct",
        ),
        (
            lambda root: mask(root / "SegmentationClass/a.png", label=999, mode="I;16"),
            {},
            r"a\.png has labels that are no class: 999;",
        ),
        (lambda root: picture(root / "SegmentationClass/a.png"), {}, r"a\.png has colours .* save it as greyscale"),
        (lambda root: picture(root / "SegmentationClass/a.png", mode="LA"), {}, r"a\.png has colours \(mode LA\)"),
        (lambda root: small_data.voc_list(root, "train", []), {}, r"train\.txt is an empty list: write the name"),
        (lambda root: small_data.voc_list(root, "train", ["a b c"]), {}, r"one name or two paths; got 'a b c'"),
        (lambda root: None, {"split": "test"}, r"test\.txt is missing: splits there: train, val"),
        (lambda root: None, {"labels": "fine"}, r"data of the kind voc take augmented; got labels"),
        (lambda root: None, {"kind": "pascal"}, r"kind must be one of voc, .*; got 'pascal'"),
        (lambda root: None, {"kind": "cityscapes"}, r"leftImg8bit is missing: give the folder that holds"),
        (lambda root: (root / "annotations.json").touch(), {}, r"several kinds: voc, taco; name one as kind="),
    ],
)
def test_voc(tmp_path: Path, harm: Break, options: Mapping[str, Any], message: str) -> None:
    root = small_data.voc(tmp_path)
    harm(root)
    with pytest.raises(UsageError, match=message):
        read(root, **options)


def test_16_bits_are_refused(tmp_path: Path) -> None:
    root = small_data.classes(tmp_path)
    mask(root / "train/ant/deep.png", label=999, mode="I;16")
    with pytest.raises(UsageError, match=r"deep\.png has 16 bits .*: convert it to 8 bits"):
        read(root)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda root: picture(root / "val/cat/1.jpg"), r"val/cat is a class that .*train does not have|is no class"),
        (lambda root: (root / "val/ant/1.JPEG").unlink(), r"val/ant is an empty list: put pictures there"),
        (lambda root: (root / "val").rename(root / "test"), r"val is missing: .*; folders there: test, train"),
    ],
)
def test_class_folders(tmp_path: Path, harm: Break, message: str) -> None:
    root = small_data.classes(tmp_path)
    harm(root)
    with pytest.raises(UsageError, match=message):
        read(root, split="val")


@pytest.mark.parametrize(
    ("harm", "options", "message"),
    [
        (
            lambda root: (root / "gtFine/train/ulm/ulm_0_0_gtFine_labelIds.png").unlink(),
            {},
            r"labelIds\.png is missing: it belongs to .*leftImg8bit\.png; unpack the labels",
        ),
        (lambda root: small_data.cityscapes(root, label=34), {}, r"no class: 34; there are 0 to 33"),
        (lambda root: None, {"labels": "coarse"}, r"gtCoarse is missing: unpack the labels beside"),
        (lambda root: None, {"labels": "rough"}, r"labels must be one of fine, coarse; got 'rough'"),
        (lambda root: None, {"split": "val"}, r"val is missing: splits there: train"),
        (
            lambda root: (root / "leftImg8bit/train/ulm/ulm_0_0_leftImg8bit.png").unlink(),
            {},
            r"leftImg8bit/train is an empty list: expected CITY",
        ),
    ],
)
def test_cityscapes(tmp_path: Path, harm: Break, options: Mapping[str, Any], message: str) -> None:
    root = small_data.cityscapes(tmp_path)
    harm(root)
    with pytest.raises(UsageError, match=message):
        read(root, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": 7}, r"annotations\.json: annotation 1 names image 7, which is not listed: remove it"),
        ({"category_id": 7}, r"annotation 1 has category 7, which is no class: correct it"),
        ({"segmentation": [[1, 2, 3, 4]]}, r"annotation 1 is neither polygons .* nor runs: correct or remove it"),
        ({"segmentation": "x"}, r"annotation 1 is neither polygons"),
        ({"segmentation": []}, r"annotation 1 is neither polygons"),
        ({"segmentation": {"size": [3, 4], "counts": [12]}}, r"annotation 1 is for a picture of another size"),
    ],
)
def test_taco_annotations(tmp_path: Path, changes: Mapping[str, Any], message: str) -> None:
    root = small_data.taco(tmp_path, **changes)
    with pytest.raises(UsageError, match=message):
        read(root, split="all")


@pytest.mark.parametrize(
    ("harm", "options", "message"),
    [
        (
            lambda root: (root / "batch_1/1.jpg").unlink(),
            {},
            r"annotations\.json: 1 of 2 pictures are missing, first of all .*1\.jpg: fetch them .* skip_missing=True",
        ),
        (
            lambda root: picture(root / "batch_1/0.jpg", 30, 40),
            {},
            r"0\.jpg is 30x40, and .*annotations\.json has its outlines for 40x30: fetch the picture at its full",
        ),
        (lambda root: (root / "annotations.json").write_text("{"), {}, r"annotations\.json is no JSON .*: fetch it"),
        (lambda root: (root / "annotations.json").write_text("{}"), {}, r"is not in COCO's format \(KeyError"),
        (lambda root: rewrite(root / "annotations.json", images=[], annotations=[]), {}, r"is an empty list: no pic"),
        (lambda root: None, {"classes": "all"}, r"classes must be one of categories, .*; got 'all'"),
        (lambda root: None, {"split": "test"}, r"split must be one of train, val, all; got 'test'"),
    ],
)
def test_taco(tmp_path: Path, harm: Break, options: Mapping[str, Any], message: str) -> None:
    root = small_data.taco(tmp_path, pictures=2)
    harm(root)
    with pytest.raises(UsageError, match=message):
        read(root, **{"split": "all", **options})


@pytest.mark.parametrize(
    ("harm", "options", "message"),
    [
        (lambda root: truncate(root / "image.nii.gz"), {}, r"image\.nii\.gz cannot be read, it is truncated or no NI"),
        (lambda root: truncate(root / "image.nii.gz", 0.01), {}, r"image\.nii\.gz cannot be read, it is truncated"),
        (lambda root: truncate(root / "label.nii.gz"), {"classes": 3}, r"label\.nii\.gz cannot be read"),
        (lambda root: None, {"classes": 2}, r"label\.nii\.gz has labels that are no class: 2; there are 0 to 1"),
        (
            lambda root: volume(root / "label.nii.gz", np.full((12, 10, 8), 0.5, np.float32)),
            {},
            r"label\.nii\.gz has labels that are no class: 0\.5",
        ),
        (
            lambda root: volume(root / "label.nii.gz", np.ones((12, 10, 9), np.uint8)),
            {},
            r"label\.nii\.gz is 12x10x9 and .*image\.nii\.gz 12x10x8: make the labels anew",
        ),
        (
            lambda root: volume(root / "label.nii.gz", np.ones((12, 10, 8), np.uint8), np.diag([1, 1, 2, 1])),
            {},
            r"label\.nii\.gz lies 7 mm beside .*image\.nii\.gz: give both the same affine",
        ),
        (
            lambda root: volume(root / "image.nii.gz", np.full((12, 10, 8), np.nan, np.float32)),
            {},
            r"image\.nii\.gz has voxels that are infinite or not a number",
        ),
        (lambda root: volume(root / "image.nii.gz", np.ones((12, 10), np.int16)), {}, r"expected three axes"),
        (
            lambda root: volume(root / "label_b.nii.gz", np.ones((12, 10, 8), np.uint8)),
            {},
            r"image\.nii\.gz has several labels \(label, label_b\): give a part",
        ),
        (
            lambda root: volume(root / "image_b.nii.gz", np.ones((12, 10, 8), np.int16)),
            {},
            r"image_b\.nii\.gz has no labels: add label_b\.nii\.gz beside it",
        ),
        (lambda root: None, {"label": "liver"}, r"image\.nii\.gz has no labels of that name: give another"),
        (lambda root: (root / "label.nii.gz").unlink(), {}, r"is an empty list: expected an image and its labels"),
        (lambda root: None, {"spacing": (1, 2)}, r"spacing must be one positive number .*; got \(1, 2\)"),
        (lambda root: None, {"spacing": 0}, r"spacing must be one positive number .*; got 0"),
        (lambda root: volume(root / "images/a.nii", np.ones((3, 3, 3))), {}, r"labels/a\.nii is missing: it belongs"),
    ],
)
def test_nifti(tmp_path: Path, harm: Break, options: Mapping[str, Any], message: str) -> None:
    root = small_data.pair(tmp_path)
    harm(root)
    with pytest.raises(UsageError, match=message):
        read(root, **{"split": "all", **options})


def test_a_truncated_nifti_that_is_not_compressed(tmp_path: Path) -> None:
    values = np.ones((8, 8, 8), np.int16)
    truncate(volume(tmp_path / "image.nii", values))
    volume(tmp_path / "label.nii", values)
    with pytest.raises(UsageError, match=r"image\.nii cannot be read, it is truncated"):
        read(tmp_path, split="all")


def test_all_volumes_have_as_many_channels(tmp_path: Path) -> None:
    small_data.pair(tmp_path / "a")
    small_data.pair(tmp_path / "b")
    volume(tmp_path / "b/image.nii.gz", np.ones((12, 10, 8, 2), np.int16))
    with pytest.raises(UsageError, match=r"b/image\.nii\.gz has 2 channels, 1 are expected as in the others"):
        read(tmp_path, split="all")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda root: (root / "imagesTr/case_0.nii.gz").unlink(), r"case_0\.nii\.gz is missing: .*dataset\.json names"),
        (lambda root: (root / "dataset.json").write_text("[]"), r"dataset\.json is not in the Decathlon's format"),
        (lambda root: rewrite(root / "dataset.json", training=[]), r"dataset\.json is an empty list: add pairs"),
        (lambda root: rewrite(root / "dataset.json", labels={"tumour": 1}), r"names tumour where 0 to 0 are expected"),
    ],
)
def test_decathlon(tmp_path: Path, harm: Break, message: str) -> None:
    root = small_data.decathlon(tmp_path)
    harm(root)
    with pytest.raises(UsageError, match=message):
        read(root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, r"classes must be 2 to 255 for segmentation; got 1"),
        ({"task": "detection"}, r"task must be one of segmentation, classification; got 'detection'"),
        ({"task": "classification", "dimensions": 3}, r"dimensions must be one of 2; got 3"),
        ({"length": 0}, r"length and size must be at least 1; got 0 and 8"),
        ({"colour": 0}, r"data of the kind synthetic take task, .*; got colour"),
    ],
)
def test_synthetic(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_data("synthetic", size=8, **options)


def test_a_missing_folder_and_one_that_is_nothing_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere is missing: give the folder of a data set, or \"synthetic\""):
        open_data(tmp_path / "nowhere", size=8)
    picture(tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"a\.png is no folder: give"):
        open_data(tmp_path / "a.png", size=8)
    with pytest.raises(UsageError, match=r"is no data set that is known; looked for\n  voc: JPEGImages/ and"):
        open_data(tmp_path, size=8)


@pytest.mark.parametrize("given", [{"size": 0}, {"size": 8, "seed": -1}])
def test_sizes_and_seeds(given: Mapping[str, int]) -> None:
    with pytest.raises(UsageError, match="size"):
        open_data("synthetic", **given)


@pytest.mark.parametrize("given", [{"batch": 0}, {"batch": 1, "rank": 2, "ranks": 2}])
def test_batches(given: Mapping[str, int]) -> None:
    with pytest.raises(UsageError, match="expected a batch of at least 1 and a rank below"):
        training_batches(open_data("synthetic", size=8), **given)


def test_files_alone(tmp_path: Path) -> None:
    about = open_whole("synthetic").about
    with pytest.raises(UsageError, match=r"gone\.jpg is missing: give a picture or a NIfTI file"):
        open_file(tmp_path / "gone.jpg", about=about)


def test_a_prediction_of_another_shape(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has the shape \(3, 4\) and its image \(4, 3\): give one class for each"):
        PalettePng(4, 3, []).write(zeros(3, 4), tmp_path / "x")


def test_what_a_worker_finds_wrong_is_said_by_the_loader(tmp_path: Path) -> None:
    root = small_data.voc(tmp_path)
    truncate(root / "JPEGImages/a.jpg")
    with pytest.raises(UsageError, match=r"a\.jpg cannot be read"):
        next(iter(training_batches(open_data(root, size=8), 2, workers=1)))


def test_data_travel_to_processes(tmp_path: Path) -> None:
    data = open_data(small_data.voc(tmp_path), size=8)
    assert len(pickle.loads(pickle.dumps(data))) == 2
