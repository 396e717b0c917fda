"""Pairs of NIfTI files, an image and its labels, however they are named.

    imagesTr/NAME.nii.gz, labelsTr/NAME.nii.gz      also images/ and labels/
    image*.nii.gz, label*.nii.gz                    in one folder; of several, those that end alike
    NAME.nii.gz, NAME_seg*.nii.gz                   in one folder; also NAME_label*, NAME_mask*, NAME_gt*

The last two also in a folder for each case. With train/ and val/ the split is that folder; otherwise every fifth pair
is for validation.
"""

from collections.abc import Sequence
from pathlib import Path

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About, numbered
from torch_lms_workloads.data.files import filled, folders_in, one_of, volume_stem, volumes_in
from torch_lms_workloads.data.format import Format
from torch_lms_workloads.data.held_out import held_out
from torch_lms_workloads.data.source import Source
from torch_lms_workloads.data.volume_files import channels_of, read_classes
from torch_lms_workloads.data.volumes import Pair, Preparation, Volumes

FOLDERS = (("imagesTr", "labelsTr"), ("images", "labels"))
MARKS = ("_seg", "_label", "_mask", "_gt")
EVERY = 5

LOOKED_INTO = 8
"""Folders of a folder, the first ones, to see whether there are volumes: there may be thousands."""

Spacing = float | Sequence[float] | None


def _source(
    root: Path,
    split: str,
    label: str | None,
    classes: int | None,
    spacing: Spacing,
    modality: str,
) -> Source:
    everything, pairs = _split(root, split, label)
    filled(pairs, root, f"expected an image and its labels for {split!r}, such as image.nii.gz and label.nii.gz")
    names = numbered(_counted(everything) if classes is None else classes)
    about = About("nifti", "segmentation", names, dimensions=3, channels=channels_of(pairs[0].image))
    return Volumes(about, pairs, Preparation(spacing_of(spacing), modality))


def _split(root: Path, split: str, label: str | None) -> tuple[Sequence[Pair], Sequence[Pair]]:
    """All pairs, and those of the split."""
    parts = {name: pairs_in(root / name, label) for name in ("train", "val") if (root / name).is_dir()}
    if not parts:
        everything = pairs_in(root, label)
        return everything, held_out(everything, split, EVERY, root)
    parts["all"] = [pair for part in parts.values() for pair in part]
    one_of("split", split, list(parts))
    return parts["all"], parts[split]


def spacing_of(spacing: Spacing) -> tuple[float, float, float] | None:
    """One number stands for all axes.

    Raises:
        UsageError: neither one positive number nor three.
    """
    if spacing is None:
        return None
    values = tuple(spacing) if isinstance(spacing, Sequence) else (spacing,) * 3
    match values:
        case (x, y, z) if min(values) > 0:
            return x, y, z
        case _:
            raise UsageError(f"spacing must be one positive number of millimetres, or three; got {spacing!r}")


def pairs_in(base: Path, label: str | None) -> list[Pair]:
    """All pairs of a folder.

    Args:
        base: the folder.
        label: a part of the name of the labels to be taken, where an image has several.

    Raises:
        UsageError: an image without labels in the other folder, or with several.
    """
    for images, labels in FOLDERS:
        if (base / images).is_dir():
            return [_across(image, base / labels) for image in volumes_in(base / images)]
    here = _beside(base, base, label)
    return here or [pair for case in folders_in(base) for pair in _beside(case, base, label)]


def _across(image: Path, labels: Path) -> Pair:
    found = labels / image.name
    if not found.is_file():
        raise UsageError(f"{found} is missing: it belongs to {image}; add it, or remove the image")
    return Pair(image, found, volume_stem(image))


def _beside(parent: Path, base: Path, label: str | None) -> list[Pair]:
    """Pairs in one folder."""
    files = volumes_in(parent)
    found = []
    for image in files:
        labels = _labels(image, files)
        if labels:
            chosen = _only(image, [path for path in labels if label is None or label in volume_stem(path)])
            found.append(Pair(image, chosen, str(image.relative_to(base).with_name(volume_stem(image)))))
    return found


def _labels(image: Path, files: Sequence[Path]) -> list[Path]:
    """Those of the files that hold labels of the image, by their names.

    Raises:
        UsageError: one of several images, without labels that are named as it is.
    """
    name = volume_stem(image)
    if not name.startswith("image"):
        return [path for path in files if volume_stem(path).startswith(tuple(name + mark for mark in MARKS))]
    labels = [path for path in files if path.name.startswith("label")]
    if sum(path.name.startswith("image") for path in files) == 1 or not labels:
        return labels
    wanted = name.replace("image", "label", 1)
    same = [path for path in labels if volume_stem(path) == wanted]
    if not same:
        raise UsageError(f"{image} has no labels: add {wanted}.nii.gz beside it, or remove the image")
    return same


def _only(image: Path, labels: list[Path]) -> Path:
    match labels:
        case [one]:
            return one
        case []:
            raise UsageError(f"{image} has no labels of that name: give another part of a name as label=")
        case _:
            names = ", ".join(volume_stem(path) for path in labels)
            raise UsageError(f"{image} has several labels ({names}): give a part of the name of one as label=")


def _counted(pairs: Sequence[Pair]) -> int:
    """The highest class in any file, and one."""
    highest = max(int(read_classes(pair.labels).max()) for pair in pairs if pair.labels is not None)
    return max(highest, 1) + 1


def _fits(root: Path) -> bool:
    if (root / "dataset.json").is_file():
        return False
    near = folders_in(root)[:LOOKED_INTO]
    below = [inner for parent in near for inner in folders_in(parent)[:LOOKED_INTO]]
    return any(volumes_in(parent) for parent in [root, *near, *below])


nifti = Format(
    kind="nifti",
    looked_for="files that end in .nii or .nii.gz, here or two folders below",
    fits=_fits,
    source=_source,
    options={"label": None, "classes": None, "spacing": None, "modality": "MR"},
)
