"""Small data sets on disk: real ones where they lie beside the project, and others that a test makes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image

REAL = Path(__file__).parents[2] / "shared" / "data"


def real(name: str) -> Path:
    """A folder of real samples; skips the test where there are none."""
    folder = REAL / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    return folder


def picture(path: Path, width: int = 40, height: int = 30, mode: str = "RGB", value: Any = None) -> Path:
    """A picture: of one value, or noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if value is None:
        noise = np.random.default_rng(0).integers(256, size=(height, width, 3), dtype=np.uint8)
        made = Image.fromarray(noise).convert(mode)
    else:
        made = Image.new(mode, (width, height), value)
    made.save(path)
    return path


def mask(path: Path, width: int = 40, height: int = 30, label: int = 1, mode: str = "L") -> Path:
    """Background with ``label`` in the left half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = np.zeros((height, width), np.uint16 if mode == "I;16" else np.uint8)
    labels[:, : width // 2] = label
    made = Image.fromarray(labels)
    if mode == "P":
        made.putpalette(list(range(256)) * 3)
    made.save(path)
    return path


def truncate(path: Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def voc(root: Path, names: Sequence[str] = ("a", "b"), **of_masks: Any) -> Path:
    for name in names:
        picture(root / "JPEGImages" / f"{name}.jpg")
        mask(root / "SegmentationClass" / f"{name}.png", **of_masks)
    voc_list(root, "train", names)
    voc_list(root, "val", names[:1])
    return root


def voc_list(root: Path, split: str, names: Sequence[str]) -> Path:
    path = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}\n" for name in names))
    return path


def cityscapes(root: Path, label: int = 7, kind: str = "gtFine") -> Path:
    picture(root / "leftImg8bit/train/ulm/ulm_0_0_leftImg8bit.png")
    mask(root / f"{kind}/train/ulm/ulm_0_0_{kind}_labelIds.png", label=label)
    return root


def classes(root: Path) -> Path:
    for split in ("train", "val"):
        for name in ("ant", "bee"):
            picture(root / split / name / "1.JPEG")
    return root


def taco(root: Path, pictures: int = 1, **changes: Any) -> Path:
    """Pictures of 40x30 with a square of category 5 and in it a smaller one of category 9."""
    for number in range(pictures):
        picture(root / f"batch_1/{number}.jpg")
    categories = [
        {"id": 5, "name": "Can", "supercategory": "Metal"},
        {"id": 8, "name": "Tin", "supercategory": "Metal"},
        {"id": 9, "name": "Cup", "supercategory": "Paper"},
    ]
    images = [{"id": n, "width": 40, "height": 30, "file_name": f"batch_1/{n}.jpg"} for n in range(pictures)]
    inner = {"id": 1, "image_id": 0, "category_id": 9, "area": 25.0, "segmentation": [square(10, 10, 5)]}
    outer = {"id": 2, "image_id": 0, "category_id": 5, "area": 400.0, "segmentation": [square(5, 5, 20)]}
    content = {"images": images, "categories": categories, "annotations": [inner | changes, outer]}
    (root / "annotations.json").write_text(json.dumps(content))
    return root


def square(left: float, top: float, side: float) -> list[float]:
    right, bottom = left + side, top + side
    return [left, top, right, top, right, bottom, left, bottom]


def volume(path: Path, values: Any, affine: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine), path)
    return path


def pair(folder: Path, sides: tuple[int, int, int] = (12, 10, 8), highest: int = 2) -> Path:
    """image.nii.gz, and label.nii.gz of layers along the last axis."""
    draw = np.random.default_rng(0)
    labels = np.zeros(sides, np.uint8) + (np.arange(sides[-1]) * (highest + 1) // sides[-1]).astype(np.uint8)
    volume(folder / "image.nii.gz", (labels * 100 + draw.integers(1, 9, sides)).astype(np.int16))
    volume(folder / "label.nii.gz", labels)
    return folder


def decathlon(root: Path, cases: int = 5, **changes: Any) -> Path:
    training = []
    for number in range(cases):
        pair(root / "made")
        for name, folder in (("image", "imagesTr"), ("label", "labelsTr")):
            (root / folder).mkdir(exist_ok=True)
            (root / "made" / f"{name}.nii.gz").rename(root / folder / f"case_{number}.nii.gz")
        training.append({"image": f"./imagesTr/case_{number}.nii.gz", "label": f"./labelsTr/case_{number}.nii.gz"})
    (root / "made").rmdir()
    labels = {"0": "background", "1": "organ", "2": "tumour"}
    content = {"labels": labels, "modality": {"0": "CT"}, "training": training, "test": []}
    (root / "dataset.json").write_text(json.dumps(content | changes))
    return root
