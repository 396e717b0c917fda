"""Pictures in a folder for each class, as ImageNet is usually kept.

    train/CLASS/NAME.JPEG
    val/CLASS/NAME.JPEG

Classes are the folders of train/, by name, so that they have the same numbers in every split.
"""

from pathlib import Path

import torch
from numpy.random import Generator
from torch import Tensor

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.crops import part_of_object, shown
from torch_lms_workloads.data.files import PICTURES, filled, folder, folders_in, names_in
from torch_lms_workloads.data.format import Format
from torch_lms_workloads.data.pictures import normalized, read_picture
from torch_lms_workloads.data.source import Source, Whole


class ClassFolders(Source):
    """One class for each picture, by its folder."""

    def __init__(self, base: Path, names: tuple[str, ...], files: list[tuple[str, int]]) -> None:
        """``files``: paths below ``base`` (as text, of which there may be millions) and classes."""
        self.about = About("class-folders", "classification", names)
        self.base = base
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def crop(self, index: int, size: int, draw: Generator | None) -> tuple[Tensor, Tensor]:
        name, label = self.files[index]
        picture = read_picture(self.base / name)
        part = part_of_object(*picture.size, draw)
        return normalized(shown(picture, part, size)), torch.tensor(label)

    def whole(self, index: int) -> Whole:
        name, label = self.files[index]
        picture = normalized(read_picture(self.base / name))
        return Whole(picture, torch.tensor(label), str(Path(name).with_suffix("")), None)


def _source(root: Path, split: str) -> Source:
    present = ", ".join(path.name for path in folders_in(root)) or "nothing"
    base = folder(root / split, f"expected {split}/CLASS/NAME.jpg; folders there: {present}")
    own = [path.name for path in folders_in(base)]
    names = [path.name for path in folders_in(root / "train")] if (root / "train").is_dir() else own
    filled(own, base, "it needs a folder for each class")
    for name in own:
        if name not in names:
            raise UsageError(f"{base / name} is no class: {root / 'train'} does not have it; add or remove it")
    files = [found for name in own for found in _files(base / name, names.index(name))]
    return ClassFolders(base, tuple(names), files)


def _files(parent: Path, label: int) -> list[tuple[str, int]]:
    found = filled(names_in(parent, PICTURES), parent, f"put pictures there ({', '.join(PICTURES)}), or remove it")
    return [(f"{parent.name}/{name}", label) for name in found]


def _fits(root: Path) -> bool:
    splits = [root / name for name in ("train", "val") if (root / name).is_dir()]
    return any(names_in(classes, PICTURES) for split in splits for classes in folders_in(split)[:1])


class_folders = Format(
    kind="class-folders",
    looked_for="train/CLASS/ or val/CLASS/ with pictures",
    fits=_fits,
    source=_source,
)
