"""Pictures: what is read of each kind, what part is trained with, and that labels stay where they belong."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_data
import torch
from PIL import Image
from small_data import mask, picture

from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.crops import part_of_object, part_of_scene
from torch_lms_workloads.data.draws import Purpose, generator
from torch_lms_workloads.data.held_out import held_out
from torch_lms_workloads.data.open import FORMATS, open_data, open_whole
from torch_lms_workloads.data.pictures import MEAN, STD, normalized, read_picture
from torch_lms_workloads.data.polygons import Outline, Outlines
from torch_lms_workloads.data.segmentation import scene_crop
from torch_lms_workloads.data.single import open_file

DOCUMENT = Path(__file__).parents[2] / "docs" / "workloads.md"

COLOURS = np.array([(0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255)], np.uint8)


def draw(index: int) -> np.random.Generator:
    return generator(Purpose.SAMPLE, 0, 0, index)


@pytest.mark.parametrize(
    ("name", "mode", "value", "seen"),
    [
        ("rgb.jpg", "RGB", (200, 0, 0), (200, 0, 0)),
        ("grey.jpg", "L", 90, (90, 90, 90)),
        ("cmyk.jpg", "CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("clear.png", "RGBA", (1, 2, 3, 0), (1, 2, 3)),
        ("black.png", "1", 0, (0, 0, 0)),
    ],
)
def test_pictures_of_other_kinds_become_rgb(tmp_path: Path, name: str, mode: str, value: Any, seen: Any) -> None:
    read = read_picture(picture(tmp_path / name, mode=mode, value=value))
    assert read.mode == "RGB"
    assert np.allclose(read.getpixel((3, 4)), seen, atol=3)


def test_colours_of_a_palette_are_looked_up(tmp_path: Path) -> None:
    made = Image.new("P", (4, 4), 1)
    made.putpalette([0, 0, 0, 10, 20, 30])
    made.save(tmp_path / "palette.png", transparency=b"\x00\x80")
    assert read_picture(tmp_path / "palette.png").getpixel((0, 0)) == (10, 20, 30)


def test_pixels_are_normalized(tmp_path: Path) -> None:
    values = normalized(read_picture(picture(tmp_path / "white.png", value="white")))
    assert torch.allclose(values[:, 0, 0], (1 - torch.tensor(MEAN)) / torch.tensor(STD))
    assert values.is_contiguous()


@pytest.mark.parametrize("mode", ["L", "P", "I;16"])
def test_numbers_of_classes_are_read_of_each_kind(tmp_path: Path, mode: str) -> None:
    [whole] = open_whole(small_data.voc(tmp_path, label=20, mode=mode), split="val")
    assert whole.target is not None
    assert whole.target.unique().tolist() == [0, 20]


@pytest.mark.parametrize("index", range(12))
@pytest.mark.parametrize("size", [24, 70, 200])
def test_labels_stay_where_they_belong(size: int, index: int) -> None:
    """Where a pixel shows a pure colour, its label is that of the colour; labels are never mixed."""
    labels = np.random.default_rng(1).integers(4, size=(9, 12), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    image, target = scene_crop(Image.fromarray(COLOURS[labels]), labels, size, draw(index))
    shown = (image.movedim(0, -1) * torch.tensor(STD) + torch.tensor(MEAN)).mul(255).round()
    assert set(target.unique().tolist()) <= {0, 1, 2, 3}
    pure = torch.zeros(size, size, dtype=torch.bool)
    for label, colour in enumerate(COLOURS):
        here = (shown == torch.from_numpy(colour)).all(-1)
        assert (target[here] == label).all()
        pure |= here
    assert pure.float().mean() > 0.4


def test_the_middle_is_taken_as_it_is() -> None:
    labels = np.arange(70, dtype=np.uint8).reshape(7, 10)
    image, target = scene_crop(Image.fromarray(labels).convert("RGB"), labels, 4, None)
    assert torch.equal(target, torch.from_numpy(labels)[1:5, 3:7].long())
    assert torch.equal(image, normalized(Image.fromarray(labels).convert("RGB"))[:, 1:5, 3:7])


def test_small_pictures_are_scaled_up_and_fill_what_is_asked_for() -> None:
    for index in range(50):
        left, top, right, bottom, _ = part_of_scene(40, 30, 2240, draw(index))
        assert (right - left, bottom - top) == pytest.approx((30, 30))
        assert 0 <= left < right <= 40
        assert 0 <= top < bottom <= 30


def test_scales_are_those_of_the_paper() -> None:
    parts = [part_of_scene(3000, 2000, 500, draw(index)) for index in range(200)]
    scales = [500 / (part.right - part.left) for part in parts]
    assert 0.5 <= min(scales) < 0.6
    assert 1.9 < max(scales) <= 2
    assert 60 < sum(part.flipped for part in parts) < 140


def test_parts_of_objects_have_the_areas_and_shapes_of_the_paper() -> None:
    for index in range(200):
        left, top, right, bottom, _ = part_of_object(500, 400, draw(index))
        assert 0 <= left < right <= 500
        assert 0 <= top < bottom <= 400
        assert 0.07 < (right - left) * (bottom - top) / (500 * 400) <= 1
        assert 0.74 < (right - left) / (bottom - top) < 1.35


def test_a_picture_too_narrow_for_any_shape_shows_its_square() -> None:
    assert part_of_object(1000, 1, draw(0))[:4] == (499, 0, 500, 1)


def test_augmentation_changes_with_the_epoch_and_only_with_it(tmp_path: Path) -> None:
    root = small_data.voc(tmp_path)
    first, again = open_data(root, size=16), open_data(root, size=16)
    assert torch.equal(first[(1, 0)][0], again[(1, 0)][0])
    assert not torch.equal(first[(1, 0)][0], first[(2, 0)][0])
    assert not torch.equal(first[(1, 0)][0], open_data(root, size=16, seed=1)[(1, 0)][0])
    plain = open_data(root, size=16, augment=False)
    assert torch.equal(plain[(1, 0)][0], plain[(2, 0)][0])


# -- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (small_data.voc, "voc"),
        (small_data.cityscapes, "cityscapes"),
        (small_data.classes, "class-folders"),
        (small_data.taco, "taco"),
        (small_data.pair, "nifti"),
        (small_data.decathlon, "decathlon"),
    ],
)
def test_a_format_is_known_by_what_the_folder_holds(tmp_path: Path, make: Callable[[Path], Path], kind: str) -> None:
    root = make(tmp_path)
    assert [form.kind for form in FORMATS.values() if form.fits(root)] == [kind]
    split = "all" if kind in ("taco", "nifti") else "train"
    assert open_whole(root, split=split).about.kind == open_whole(root, split=split, kind=kind).about.kind == kind


def test_voc_is_found_below_its_kit(tmp_path: Path) -> None:
    small_data.voc(tmp_path / "VOCdevkit" / "VOC2012")
    assert len(open_whole(tmp_path, split="train")) == 2


def test_the_augmented_list_is_taken_if_present(tmp_path: Path) -> None:
    root = small_data.voc(tmp_path)
    picture(root / "JPEGImages" / "c.jpg")
    more = mask(root / "SegmentationClassAug" / "c.png", label=3)
    mask(root / "SegmentationClassAug" / "a.png", label=3)
    small_data.voc_list(root, "train_aug", ["a", "/JPEGImages/c.jpg /SegmentationClassAug/c.png", "c"])
    data = open_whole(root, split="train")
    labels = [whole.target.max().item() for whole in data]
    assert more.is_file()
    assert labels == [1, 3, 3]  # the official mask of "a" is finer
    assert len(open_whole(root, split="train", augmented=False)) == 2


@pytest.mark.parametrize(("labels", "kind"), [("fine", "gtFine"), ("coarse", "gtCoarse")])
def test_both_kinds_of_cityscapes_labels(tmp_path: Path, labels: str, kind: str) -> None:
    [whole] = open_whole(small_data.cityscapes(tmp_path, label=33, kind=kind), split="train", labels=labels)
    assert whole.target is not None
    assert whole.target.unique().tolist() == [18, 255]
    assert whole.name == "ulm/ulm_0_0"


def test_small_things_lie_in_front_of_large_ones(tmp_path: Path) -> None:
    [whole] = open_whole(small_data.taco(tmp_path), split="all", classes="supercategories")
    assert whole.target is not None
    assert whole.target.flatten().bincount().tolist() == [40 * 30 - 400, 375, 25]
    assert whole.target[12, 12] == 2


def test_pictures_are_turned_as_the_camera_noted(tmp_path: Path) -> None:
    root = small_data.taco(tmp_path)
    sideways = Image.new("RGB", (30, 40))
    exif = sideways.getexif()
    exif[274] = 6  # turn by a quarter to see it upright
    sideways.save(root / "batch_1/0.jpg", exif=exif)
    assert open_whole(root, split="all")[0].image.shape == (3, 30, 40)
    assert open_file(root / "batch_1/0.jpg", about=About("x", "segmentation", ("a",))).image.shape == (3, 30, 40)


def test_lists_of_a_split_go_before_our_own(tmp_path: Path) -> None:
    root = small_data.taco(tmp_path, pictures=20)
    assert [len(open_whole(root, split=split)) for split in ("train", "val", "all")] == [18, 2, 20]
    content = json.loads((root / "annotations.json").read_text())
    content["images"] = content["images"][:3]
    (root / "annotations_0_val.json").write_text(json.dumps(content))
    assert len(open_whole(root, split="val")) == 3


@pytest.mark.parametrize("runs", [[0, 30, 1170], "compressed"])
def test_outlines_may_be_runs(runs: Any) -> None:
    from pycocotools import mask as coco

    column = np.zeros((30, 40), np.uint8, order="F")
    column[:, 0] = 1
    shape = coco.encode(column) if runs == "compressed" else {"size": [30, 40], "counts": runs}
    outline = Outline(1, 2, 30.0, shape)
    labels = Outlines(40, 30, (outline,), Path("a.json"), Path("a.jpg")).drawn(40, 30)
    assert np.array_equal(labels, column * 2)


@pytest.mark.parametrize(("count", "val"), [(2, [1]), (3, [2]), (10, [4, 9]), (11, [4, 9])])
def test_what_is_held_out(count: int, val: list[int]) -> None:
    items = list(range(count))
    assert held_out(items, "val", 5, Path("x")) == val
    assert held_out(items, "train", 5, Path("x")) == [item for item in items if item not in val]
    assert held_out(items, "all", 5, Path("x")) == items


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_has_a_section_with_its_options(kind: str) -> None:
    sections = DOCUMENT.read_text().split("\n### ")
    section = next(text for text in sections if text.startswith(f"`{kind}`"))
    assert all(re.search(f"`{option}[`=]", section) for option in FORMATS[kind].options)
    assert "open_data(" in section
