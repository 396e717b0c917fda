"""Reading volumes from NIfTI files."""

import zlib
from pathlib import Path
from typing import Any, NamedTuple

import nibabel
import numpy as np
from nibabel.filebasedimages import ImageFileError
from numpy.typing import NDArray

from torch_lms.errors import UsageError
from torch_lms_workloads.data.predictions import Affine

DAMAGE = (OSError, EOFError, ValueError, zlib.error, ImageFileError)
"""What reading a damaged file raises."""

APART_MM = 0.1
"""How far apart corners of an image and of its labels may lie: headers are rounded."""


class Scan(NamedTuple):
    """
    Attributes:
        path: its file.
        values: (channels, *sides), float32.
        affine: of its voxels.
    """

    path: Path
    values: NDArray[np.float32]
    affine: Affine


def read_scan(path: Path) -> Scan:
    """A volume, or several on one grid along a fourth axis.

    Raises:
        UsageError: missing, truncated, no NIfTI, flat, or with values that are no numbers.
    """
    values, affine = _read(path)
    if values.ndim == 3:
        values = values[..., np.newaxis]
    if values.ndim != 4:
        raise UsageError(f"{path} has the shape {values.shape}: expected three axes, or four with channels last")
    if not np.isfinite(values).all():
        raise UsageError(f"{path} has voxels that are infinite or not a number: replace them")
    return Scan(path, np.ascontiguousarray(np.moveaxis(values, -1, 0)), affine)


def channels_of(path: Path) -> int:
    """How many volumes a file holds on one grid, by its header.

    Raises:
        UsageError: missing, truncated, or no NIfTI.
    """
    shape = _opened(path).shape
    return int(shape[3]) if len(shape) > 3 else 1


def read_classes(path: Path, scan: Scan | None = None, classes: int | None = None) -> NDArray[np.uint8]:
    """The labels of a scan: (*sides).

    Args:
        path: their file.
        scan: what they belong to; None checks nothing of it.
        classes: how many there are; None allows any up to 256.

    Raises:
        UsageError: as above; of another size, at another place, or no such class.
    """
    values, affine = _read(path)
    values = values.squeeze(-1) if values.ndim == 4 and values.shape[-1] == 1 else values
    if scan is not None:
        _check_place(path, values.shape, affine, scan)
    labels = np.rint(values)
    most = 255 if classes is None else classes - 1
    wrong = (labels < 0) | (labels > most) | (abs(values - labels) > 1e-3) | np.isnan(values)
    if wrong.any():
        raise UsageError(
            f"{path} has labels that are no class: {_few(values[wrong])}; there are 0 to {most}: "
            "correct the labels, or give the number of classes"
        )
    return labels.astype(np.uint8)


def _check_place(path: Path, shape: tuple[int, ...], affine: Affine, scan: Scan) -> None:
    sides = scan.values.shape[1:]
    if shape != sides:
        raise UsageError(f"{path} is {_by(shape)} and {scan.path} {_by(sides)}: make the labels anew at that size")
    corners = np.array([(*((np.array(sides) - 1) * at), 1) for at in np.ndindex(2, 2, 2)]).T
    apart = abs((affine - scan.affine) @ corners).max()
    if apart > APART_MM:
        raise UsageError(
            f"{path} lies {apart:.3g} mm beside {scan.path}: give both the same affine, or resample the labels"
        )


def _few(values: NDArray[np.float32]) -> str:
    return ", ".join(f"{value:g}" for value in np.unique(values)[:5])


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _read(path: Path) -> tuple[NDArray[np.float32], Affine]:
    image = _opened(path)
    try:
        return np.asarray(image.dataobj, dtype=np.float32), np.asarray(image.affine, dtype=np.float64)
    except DAMAGE as error:
        raise _damaged(path, error) from error


def _opened(path: Path) -> Any:
    try:
        return nibabel.load(path)
    except FileNotFoundError as error:
        raise UsageError(f"{path} is missing: fetch it, or take it off the list") from error
    except DAMAGE as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} cannot be read, it is truncated or no NIfTI ({error}): fetch it again")
