"""The brain scan of the demo, from nilearn's own files: nothing is downloaded."""

import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its dependencies' next releases
    from nilearn import datasets


@dataclass(frozen=True, slots=True)
class Volume:
    """What was written: voxels along each side, and the version of nilearn that gave them."""

    shape: tuple[int, ...]
    nilearn: str


def write_volume(path: Path, voxel_mm: int) -> Volume:
    """Write ``scan`` (float32, 0 outside the brain) and ``labels`` (uint8: 1 grey matter, 2 white, 0 neither) as .npz.

    The scan is the MNI152 T1 template (Fonov et al. 2011, symmetric, 2009a). A voxel has the tissue that the maps
    published with it give more than half of it.
    """
    scan = datasets.load_mni152_template(resolution=voxel_mm).get_fdata(dtype=np.float32)
    labels = np.zeros(scan.shape, np.uint8)
    labels[datasets.load_mni152_gm_template(resolution=voxel_mm).get_fdata() > 0.5] = 1
    labels[datasets.load_mni152_wm_template(resolution=voxel_mm).get_fdata() > 0.5] = 2
    np.savez(path, scan=scan, labels=labels)
    return Volume(scan.shape, metadata.version("nilearn"))
