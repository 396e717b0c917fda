"""The brain scan of the demo, from nilearn's own files: nothing is downloaded."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the next releases of its dependencies
    from nilearn import datasets

Volume: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Brain:
    """The MNI152 T1 template at 1 mm (Fonov et al. 2011, symmetric, 2009a), and each tissue's share of every voxel.

    All three have the same shape and are float32 between 0 and 1; the scan is 0 outside the brain.
    """

    scan: Volume
    grey: Volume
    white: Volume


def read_brain() -> Brain:
    """Read the brain from nilearn's files, which takes about a second."""
    return Brain(
        scan=datasets.load_mni152_template(resolution=1).get_fdata(dtype=np.float32),
        grey=datasets.load_mni152_gm_template(resolution=1).get_fdata(dtype=np.float32),
        white=datasets.load_mni152_wm_template(resolution=1).get_fdata(dtype=np.float32),
    )


def write_volume(brain: Brain, path: Path, voxel_mm: int) -> tuple[int, ...]:
    """Write ``scan`` (float32) and ``labels`` (uint8: 1 grey matter, 2 white, 0 neither) as .npz.

    A voxel has the tissue that fills more than half of it.

    Returns:
        The shape of both.
    """
    scan = _coarse(brain.scan, voxel_mm)
    labels = np.zeros(scan.shape, np.uint8)
    for label, share in enumerate((brain.grey, brain.white), start=1):
        labels[_coarse(share, voxel_mm) > 0.5] = label
    np.savez(path, scan=scan, labels=labels)
    return scan.shape


def _coarse(volume: Volume, factor: int) -> Volume:
    """The mean of each cube of ``factor`` voxels a side; beyond the edge there is nothing (0)."""
    padded = np.pad(volume, [(0, -side % factor) for side in volume.shape])
    depth, height, width = (side // factor for side in padded.shape)
    cubes = padded.reshape(depth, factor, height, factor, width, factor)
    means: Volume = cubes.mean((1, 3, 5), dtype=np.float32)
    return means
