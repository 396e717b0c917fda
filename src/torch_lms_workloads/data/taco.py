"""TACO, litter in the wild (arXiv 2003.06975): outlines in COCO's format. The pictures are fetched by their own script.

    annotations.json              also below data/
    batch_1/000006.jpg            as the annotations name them, from their folder on
    annotations_0_train.json      optional: splits made by the project's script; also val and test

Without such files, every tenth picture is for validation.
"""

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.files import file, filled, one_of, read_json
from torch_lms_workloads.data.format import Format
from torch_lms_workloads.data.held_out import held_out
from torch_lms_workloads.data.polygons import Outline, Outlines
from torch_lms_workloads.data.segmentation import Labelled, LabelledPictures
from torch_lms_workloads.data.source import Source

FILE = "annotations.json"
EVERY = 10
CHOICES = ("categories", "supercategories", "litter")

Record = Mapping[str, Any]


def _source(root: Path, split: str, classes: str, skip_missing: bool) -> Source:
    one_of("classes", classes, CHOICES)
    path = file(_file(root, split), f"give the folder that holds {FILE}")
    content = read_json(path)
    try:
        names, labels = _classes(content["categories"], classes)
        pictures, annotations = content["images"], content["annotations"]
        outlines = _outlines(annotations, {picture["id"] for picture in pictures}, labels, path)
        if path.name == FILE:
            pictures = held_out(pictures, split, EVERY, path)
        items = [_item(path, picture, outlines[picture["id"]]) for picture in pictures]
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is not in COCO's format ({error!r}): fetch it again") from error
    present = _present(items, path, skip_missing)
    filled(present, path, f"no picture is left for the split {split!r}: fetch the pictures, or take split='all'")
    return LabelledPictures(About("taco", "segmentation", names), present, upright=True)


def _file(root: Path, split: str) -> Path:
    base = root if (root / FILE).is_file() else root / "data"
    ready = base / f"annotations_0_{split}.json"
    return ready if ready.is_file() else base / FILE


def _classes(categories: Sequence[Record], choice: str) -> tuple[tuple[str, ...], dict[int, int]]:
    """Names of classes, and the class of each category by its number."""
    known = sorted(categories, key=lambda category: category["id"])
    if choice == "litter":
        return ("background", "litter"), {category["id"]: 1 for category in known}
    key = "name" if choice == "categories" else "supercategory"
    names = ("background", *dict.fromkeys(category[key] for category in known))
    return names, {category["id"]: names.index(category[key], 1) for category in known}


def _outlines(
    annotations: Sequence[Record], pictures: set[int], labels: Mapping[int, int], path: Path
) -> Mapping[int, list[Outline]]:
    """By number of the picture."""
    found: dict[int, list[Outline]] = defaultdict(list)
    for record in annotations:
        number, picture, category = record["id"], record["image_id"], record["category_id"]
        if picture not in pictures:
            raise UsageError(f"{path}: annotation {number} names image {picture}, which is not listed: remove it")
        if category not in labels:
            raise UsageError(f"{path}: annotation {number} has category {category}, which is no class: correct it")
        found[picture].append(Outline(number, labels[category], record["area"], record["segmentation"]))
    return found


def _item(path: Path, record: Record, outlines: Sequence[Outline]) -> Labelled:
    picture = path.parent / record["file_name"]
    labels = Outlines(record["width"], record["height"], tuple(outlines), path, picture)
    return Labelled(picture, labels, str(Path(record["file_name"]).with_suffix("")))


def _present(items: Sequence[Labelled], path: Path, skip_missing: bool) -> Sequence[Labelled]:
    missing = [item.path for item in items if not item.path.is_file()]
    if not missing:
        return items
    report = f"{path}: {len(missing)} of {len(items)} pictures are missing, first of all {missing[0]}"
    if not skip_missing:
        raise UsageError(f"{report}: fetch them with the data set's download.py, or take skip_missing=True")
    warnings.warn(f"{report}; they are skipped", stacklevel=2)
    return [item for item in items if item.path.is_file()]


taco = Format(
    kind="taco",
    looked_for=f"{FILE} (also below data/)",
    fits=lambda root: any((root / below / FILE).is_file() for below in ("", "data")),
    source=_source,
    options={"classes": "categories", "skip_missing": False},
)
