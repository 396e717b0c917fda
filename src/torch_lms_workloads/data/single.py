"""One file alone, to be predicted: a picture or a volume, of which no labels are known."""

from pathlib import Path

from torch_lms_workloads.data.about import About
from torch_lms_workloads.data.files import VOLUMES, file, volume_stem
from torch_lms_workloads.data.nifti import Spacing, spacing_of
from torch_lms_workloads.data.pictures import read_picture
from torch_lms_workloads.data.segmentation import whole_scene
from torch_lms_workloads.data.source import Whole
from torch_lms_workloads.data.volumes import Pair, Preparation, Volumes


def open_file(path: str | Path, *, about: About, spacing: Spacing = None, modality: str = "MR") -> Whole:
    """A picture or a NIfTI file at its own size, without a target.

    Args:
        path: the file.
        about: of the data that the network was trained with: gives the colours of the prediction.
        spacing, modality: of a volume: those that the network was trained with.

    Raises:
        UsageError: missing, truncated, or neither a picture nor a volume.
    """
    found = file(Path(path), "give a picture or a NIfTI file")
    if found.name.endswith(VOLUMES):
        preparation = Preparation(spacing_of(spacing), modality)
        return Volumes(about, [Pair(found, None, volume_stem(found))], preparation).whole(0)
    return whole_scene(read_picture(found, upright=True), None, found.stem, about)
