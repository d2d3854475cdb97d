"""NIfTI files, as volumes of one array: the header by nibabel, voxels by reads at offsets. A
gzipped file is unpacked to a scratch file first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.formats.file_suffixes import NIFTI_SUFFIXES
from wkwdask.formats.pictures.array_file import DescribedArray, bytes_ref, decimal, gzip_ref
from wkwdask.model.extras import import_extra
from wkwdask.model.levels import length_nm
from wkwdask.model.parsing import reading

if TYPE_CHECKING:
    import numpy.typing as npt

_GZIPPED = (".nii.gz",)
_UNITS = {"meter": "m", "mm": "mm", "micron": "um"}
_AXES = "xyztuvw"  # NIfTI-1, "dim": x, y, z, t, and others without a name


def is_nifti(path: str) -> bool:
    return path.lower().endswith(NIFTI_SUFFIXES + _GZIPPED)


def open_nifti(path: str) -> DescribedArray:
    nibabel = import_extra("nibabel", path)
    with reading(path, "NIfTI file"):
        image = nibabel.load(path)
        header, stored = image.header, image.dataobj
        shape, offset, dtype = tuple(map(int, stored.shape)), int(stored.offset), stored.dtype
        scaling = float(stored.slope), float(stored.inter)
        unit = _UNITS.get(header.get_xyzt_units()[0])
        zooms = [decimal(length) for length in header.get_zooms()[:3]]
        affine = np.asarray(image.affine, np.float64)
    if not isinstance(image, nibabel.Nifti1Image):
        raise CorruptError(f"{path}: expected a NIfTI file, found {type(image).__name__}")
    _check_stored(path, shape, offset, dtype, scaling)
    lengths = [
        length_nm(length, unit) if unit is not None and math.isfinite(length) else 0.0
        for length in zooms
    ]
    make_ref = gzip_ref if path.lower().endswith(_GZIPPED) else bytes_ref
    return DescribedArray(
        make_ref(path, shape[::-1], dtype, offset),
        list(_AXES[: len(shape)])[::-1],
        [*lengths, 0.0, 0.0][:3],
        _notes(path, affine),
    )


def _check_stored(
    path: str,
    shape: tuple[int, ...],
    offset: int,
    dtype: np.dtype[Any],
    scaling: tuple[float, float],
) -> None:
    """Raise an error for values that need more than a copy of the stored ones."""
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise UnsupportedError(f"{path}: expected integers or floats, found {dtype}")
    if not shape or min(shape) < 1 or offset < 0:
        raise CorruptError(f"{path}: holds {shape} voxels from byte {offset}")
    if scaling != (1, 0):
        raise UnsupportedError(
            f"{path}: expected stored values, found the slope {scaling[0]:g} and intercept "
            f"{scaling[1]:g}; apply them first (nibabel: get_fdata)"
        )


def _notes(path: str, affine: npt.NDArray[np.float64]) -> tuple[str, ...]:
    directions = affine[:3, :3]
    is_plain = np.all(directions == np.diag(np.abs(np.diag(directions))))
    if is_plain and not np.any(affine[:3, 3]):
        return ()
    return (
        f"{path}: its orientation and position (affine) are not applied; voxels keep the order in "
        "which they are stored",
    )
