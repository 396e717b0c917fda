"""The Medical Segmentation Decathlon (arXiv 2106.05735).

    dataset.json        "labels", "modality", "training": [{"image": "./imagesTr/NAME.nii.gz", "label": ...}]
    imagesTr/, labelsTr/

Every fifth pair is for validation, unless dataset.json has a list "validation".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.files import file, filled, read_json, volume_stem
from torch_lms_workloads.data.format import Format
from torch_lms_workloads.data.held_out import held_out
from torch_lms_workloads.data.nifti import EVERY, Spacing, spacing_of
from torch_lms_workloads.data.source import Source
from torch_lms_workloads.data.volumes import Pair, Preparation, Volumes

FILE = "dataset.json"


def _source(root: Path, split: str, spacing: Spacing, modality: str | None) -> Source:
    path = file(root / FILE, f"give the folder that holds {FILE}")
    content = read_json(path)
    try:
        names, modalities = _in_order(content["labels"], path), _in_order(content["modality"], path)
        pairs = [_pair(root, entry) for entry in _entries(content, split, path)]
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is not in the Decathlon's format ({error!r}): fetch it again") from error
    filled(pairs, path, f"add pairs to its list for the split {split!r}")
    for pair in pairs:
        for needed in (pair.image, pair.labels):
            if needed is not None:
                file(needed, f"{path} names it: unpack it there, or take it off the list")
    about = About("decathlon", "segmentation", names, dimensions=3, channels=len(modalities))
    return Volumes(about, pairs, Preparation(spacing_of(spacing), modality or modalities[0]))


def _in_order(named: Mapping[str, str], path: Path) -> tuple[str, ...]:
    """Values by their keys, which must be 0, 1, 2 and so on."""
    numbers = [str(number) for number in range(len(named))]
    if set(named) != set(numbers):
        raise UsageError(f"{path} names {', '.join(named)} where 0 to {len(named) - 1} are expected: number them so")
    return tuple(named[number] for number in numbers)


def _entries(content: Mapping[str, Any], split: str, path: Path) -> Any:
    if "validation" in content and split in ("train", "val"):
        return content["training" if split == "train" else "validation"]
    return held_out(content["training"], split, EVERY, path)


def _pair(root: Path, entry: Mapping[str, str]) -> Pair:
    image = root / entry["image"]
    return Pair(image, root / entry["label"], volume_stem(image))


decathlon = Format(
    kind="decathlon",
    looked_for=FILE,
    fits=lambda root: (root / FILE).is_file(),
    source=_source,
    options={"spacing": None, "modality": None},
)
