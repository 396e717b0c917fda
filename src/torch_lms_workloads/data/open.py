"""Data sets by the folder's name: the format is found by what the folder holds."""

from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError
from torch_lms_workloads.data.cityscapes import cityscapes
from torch_lms_workloads.data.class_folders import class_folders
from torch_lms_workloads.data.datasets import Samples, Wholes
from torch_lms_workloads.data.decathlon import decathlon
from torch_lms_workloads.data.files import folder, one_of
from torch_lms_workloads.data.format import Format
from torch_lms_workloads.data.nifti import nifti
from torch_lms_workloads.data.synthetic import synthetic
from torch_lms_workloads.data.taco import taco
from torch_lms_workloads.data.voc import voc

FORMATS = {form.kind: form for form in (voc, class_folders, cityscapes, taco, nifti, decathlon, synthetic)}


def open_data(
    path: str | Path,
    *,
    size: int,
    split: str = "train",
    kind: str | None = None,
    augment: bool | None = None,
    seed: int = 0,
    **options: Any,
) -> Samples:
    """Samples (image, target) of one size.

    Args:
        path: the data set's folder, or ``"synthetic"``.
        size: pixels or voxels along each side.
        split: as the format names it.
        kind: the format's name; None looks at the folder.
        augment: choose, scale and flip at random; None does so if the split's name begins with "train".
        seed: of what is random.
        options: the format's own, by which its file is the document.

    Raises:
        UsageError: no such folder, no or more than one format that fits, or data that are not as they should be.
    """
    form, root = _recognized(path, kind)
    if form is synthetic:
        options = {"size": size, "seed": seed, **options}
    augment = split.startswith("train") if augment is None else augment
    return Samples(form.open(root, split, options), size, augment=augment, seed=seed)


def open_whole(path: str | Path, *, split: str = "val", kind: str | None = None, **options: Any) -> Wholes:
    """Images at their own size. Arguments and errors as those of ``open_data``."""
    form, root = _recognized(path, kind)
    return Wholes(form.open(root, split, options))


def format_of(path: str | Path, kind: str | None = None) -> Format:
    """The format of a data set. Errors as those of ``open_data``."""
    return _recognized(path, kind)[0]


def _recognized(path: str | Path, kind: str | None) -> tuple[Format, Path]:
    root = Path(path)
    if path == synthetic.kind or kind == synthetic.kind:
        return synthetic, root
    folder(root, f'give the folder of a data set, or "{synthetic.kind}"')
    if kind is not None:
        one_of("kind", kind, list(FORMATS))
        return FORMATS[kind], root
    return _only(root, [form for form in FORMATS.values() if form.fits(root)]), root


def _only(root: Path, fitting: list[Format]) -> Format:
    match fitting:
        case [one]:
            return one
        case []:
            looked_for = "\n".join(f"  {form.kind}: {form.looked_for}" for form in FORMATS.values())
            raise UsageError(f"{root} is no data set that is known; looked for\n{looked_for}")
        case _:
            kinds = ", ".join(form.kind for form in fitting)
            raise UsageError(f"{root} could be of several kinds: {kinds}; name one as kind=")
