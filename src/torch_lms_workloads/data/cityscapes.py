"""Cityscapes (arXiv 1604.01685).

    leftImg8bit/SPLIT/CITY/NAME_leftImg8bit.png
    gtFine/SPLIT/CITY/NAME_gtFine_labelIds.png
    gtCoarse/SPLIT/CITY/NAME_gtCoarse_labelIds.png      with labels="coarse"

Of the 34 labels 19 are trained and evaluated; the others do not count.
"""

from pathlib import Path

from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.files import file, filled, folder, folders_in, names_in, one_of
from torch_lms_workloads.data.format import Format
from torch_lms_workloads.data.masks import MaskFile, Table
from torch_lms_workloads.data.segmentation import Labelled, LabelledPictures
from torch_lms_workloads.data.source import Source
from torch_lms_workloads.losses import IGNORED

TRAINED = {
    7: ("road", (128, 64, 128)),
    8: ("sidewalk", (244, 35, 232)),
    11: ("building", (70, 70, 70)),
    12: ("wall", (102, 102, 156)),
    13: ("fence", (190, 153, 153)),
    17: ("pole", (153, 153, 153)),
    19: ("traffic light", (250, 170, 30)),
    20: ("traffic sign", (220, 220, 0)),
    21: ("vegetation", (107, 142, 35)),
    22: ("terrain", (152, 251, 152)),
    23: ("sky", (70, 130, 180)),
    24: ("person", (220, 20, 60)),
    25: ("rider", (255, 0, 0)),
    26: ("car", (0, 0, 142)),
    27: ("truck", (0, 0, 70)),
    28: ("bus", (0, 60, 100)),
    31: ("train", (0, 80, 100)),
    32: ("motorcycle", (0, 0, 230)),
    33: ("bicycle", (119, 11, 32)),
}
"""By label: name and colour. The class is the position here."""

LABELS = 34

TABLE = Table.of(
    {**dict.fromkeys(range(LABELS), IGNORED), **{label: number for number, label in enumerate(TRAINED)}},
    f"0 to {LABELS - 1} (files that end in labelIds.png)",
)

FOLDERS = {"fine": "gtFine", "coarse": "gtCoarse"}
ENDING = "_leftImg8bit.png"


def _source(root: Path, split: str, labels: str) -> Source:
    one_of("labels", labels, list(FOLDERS))
    pictures = folder(root / "leftImg8bit", "give the folder that holds leftImg8bit and gtFine")
    present = ", ".join(path.name for path in folders_in(pictures)) or "nothing"
    pictures = folder(pictures / split, f"splits there: {present}")
    masks = folder(root / FOLDERS[labels], "unpack the labels beside leftImg8bit")
    found = [city / name for city in folders_in(pictures) for name in names_in(city, (ENDING.lower(),))]
    filled(found, pictures, f"expected CITY/NAME{ENDING}")
    names, colours = zip(*TRAINED.values(), strict=True)
    about = About("cityscapes", "segmentation", names, ignored=IGNORED, colours=colours)
    return LabelledPictures(about, [_item(path, masks / split) for path in found])


def _item(path: Path, masks: Path) -> Labelled:
    name = path.name.removesuffix(ENDING)
    city = path.parent.name
    mask = masks / city / f"{name}_{masks.parent.name}_labelIds.png"
    file(mask, f"it belongs to {path}; unpack the labels there, or remove the picture")
    return Labelled(path, MaskFile(mask, TABLE), f"{city}/{name}")


cityscapes = Format(
    kind="cityscapes",
    looked_for="leftImg8bit/",
    fits=lambda root: (root / "leftImg8bit").is_dir(),
    source=_source,
    options={"labels": "fine"},
)
