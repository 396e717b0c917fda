"""PASCAL VOC 2012, segmentation (host.robots.ox.ac.uk/pascal/VOC/voc2012).

JPEGImages/NAME.jpg
SegmentationClass/NAME.png            classes 0 to 20; 255 does not count
SegmentationClassAug/NAME.png         optional: more masks, drawn for SBD (ICCV 2011, Hariharan et al.)
ImageSets/Segmentation/train.txt      NAMEs, one a line; val.txt, trainval.txt and others likewise
ImageSets/Segmentation/train_aug.txt  optional: the augmented list; also trainaug.txt. A line may also hold
                                      two paths, of the picture and of the mask
"""

from pathlib import Path

from torch_lms.errors import UsageError
from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.files import file, filled, folder, lines
from torch_lms_workloads.data.format import Format
from torch_lms_workloads.data.masks import MaskFile, Table
from torch_lms_workloads.data.segmentation import Labelled, LabelledPictures
from torch_lms_workloads.data.source import Source
from torch_lms_workloads.losses import IGNORED

NAMES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)

TABLE = Table.of({**{n: n for n in range(len(NAMES))}, IGNORED: IGNORED}, f"0 to {len(NAMES) - 1}, and {IGNORED}")

LISTS = Path("ImageSets", "Segmentation")
AUGMENTED_LISTS = ("train_aug.txt", "trainaug.txt")
MASKS, AUGMENTED_MASKS = "SegmentationClass", "SegmentationClassAug"

BELOW = (Path(), Path("VOC2012"), Path("VOCdevkit", "VOC2012"))
"""Where in what was unpacked the data may lie."""


def _source(root: Path, split: str, augmented: bool) -> Source:
    base = _base(root) or root
    folder(base / "JPEGImages", "give the folder that holds JPEGImages, SegmentationClass and ImageSets")
    path = _list(folder(base / LISTS, "VOC's lists belong there"), split, augmented)
    names = filled(lines(path), path, "write the name of one picture a line, without its ending")
    return LabelledPictures(
        About("voc", "segmentation", NAMES, ignored=IGNORED), [_item(base, line, path) for line in names]
    )


def _base(root: Path) -> Path | None:
    bases = (root / below for below in BELOW)
    return next((base for base in bases if (base / "JPEGImages").is_dir() and (base / LISTS).is_dir()), None)


def _list(lists: Path, split: str, augmented: bool) -> Path:
    longer = [lists / name for name in AUGMENTED_LISTS if (lists / name).is_file()]
    if split == "train" and augmented and longer:
        return longer[0]
    present = ", ".join(sorted(path.stem for path in lists.glob("*.txt"))) or "nothing"
    return file(lists / f"{split}.txt", f"splits there: {present}")


def _item(base: Path, line: str, path: Path) -> Labelled:
    match line.split():
        case [name]:
            picture, mask = base / "JPEGImages" / f"{name}.jpg", _mask(base, f"{name}.png")
        case [first, second]:
            picture, mask = base / first.lstrip("/"), base / second.lstrip("/")
        case _:
            raise UsageError(f"{path}: a line is one name or two paths; got {line!r}: correct the line")
    for needed in (picture, mask):
        file(needed, f"{path} names it; unpack it there, or take it off the list")
    return Labelled(picture, MaskFile(mask, TABLE), picture.stem)


def _mask(base: Path, name: str) -> Path:
    """The official one if there is one: it is finer."""
    official, more = base / MASKS / name, base / AUGMENTED_MASKS / name
    return more if more.is_file() and not official.is_file() else official


voc = Format(
    kind="voc",
    looked_for="JPEGImages/ and ImageSets/Segmentation/ (also below VOC2012/ or VOCdevkit/VOC2012/)",
    fits=lambda root: _base(root) is not None,
    source=_source,
    options={"augmented": True},
)
