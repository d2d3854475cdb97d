"""Arrays as people have them, brought into the form that writers take: (c, x, y, z), and the absolute voxel of element 0."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import dask.base
import numpy as np

from wkwdask.geometry.mag import Vec3, vec3
from wkwdask.kernels.arrays import copy_into, fold
from wkwdask.model.coordinates import first_voxel, spacing_of
from wkwdask.model.levels import ratio_of
from wkwdask.runs.staged import Content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.mag import Mag
    from wkwdask.model.levels import Lengths

_DIMS = "cxyz"
_CUBE = 64


@dataclass(frozen=True, slots=True)
class Named:
    """What an ``xarray.DataArray`` says of itself."""

    offset: Vec3
    """Absolute voxel of element 0 along x, y, z."""
    lengths_nm: Lengths | None
    """Edge lengths of its voxels along x, y, z [nm], None where it does not say all of them."""
    category: str | None
    """What a layer of it is."""


def named_axes(array: Any, *, placed: bool) -> tuple[Any, Named]:
    """Take the array out of an ``xarray.DataArray``, in the order (c, x, y, z)."""
    array = array.expand_dims([axis for axis in "xyz" if axis not in array.dims and axis in array.coords and array.coords[axis].ndim == 0])
    dims = [str(dim) for dim in array.dims]
    if sorted(dims) not in (sorted("xyz"), sorted("cxyz")):
        raise ValueError(f"the dimensions must be named x, y, z (and c), in any order, got {array.dims}; rename() them")
    ordered = array.transpose(*(dim for dim in _DIMS if dim in dims))
    data = ordered.data if "c" in dims else ordered.data[np.newaxis]
    category = array.attrs.get("category")
    category = category if category in ("color", "segmentation") else None
    known = [] if placed else [axis for axis in "xyz" if axis in array.coords and array.coords[axis].size]
    spacings = {axis: spacing_of(array.coords[axis], axis) for axis in known}
    x, y, z = (first_voxel(spacings[axis], axis) if axis in known else 0 for axis in "xyz")
    lengths = [spacing.length_nm for spacing in spacings.values() if spacing.length_nm is not None]
    return data, Named((x, y, z), (lengths[0], lengths[1], lengths[2]) if len(lengths) == 3 else None, category)


def plain_array(array: Any, offset: Sequence[int] | None, *, allow_negative: bool = False) -> tuple[Any, Named]:
    """Bring an array into the form that writers take."""
    named = Named((0, 0, 0), None, None)
    if hasattr(array, "coords") and hasattr(array, "data"):
        array, named = named_axes(array, placed=offset is not None)
    if not hasattr(array, "ndim") or isinstance(array, np.ma.MaskedArray) or hasattr(array, "dims"):
        raise TypeError(f"the array must be a dask or numpy array or an xarray DataArray (fill a masked one), got {type(array).__name__}")
    if array.ndim not in (3, 4):
        raise ValueError(f"the array must have the shape (x, y, z) or (c, x, y, z), got {array.shape}")
    if array.ndim == 3:
        array = array[np.newaxis]
    if isinstance(getattr(array, "_meta", None), np.ma.MaskedArray):
        raise TypeError("the array holds masked arrays: fill it (dask.array.ma.filled)")
    if any(n != n for n in array.shape):
        raise ValueError("the array's shape is not known; call its compute_chunk_sizes() first")
    if offset is not None:
        named = replace(named, offset=vec3(offset, "offset"))
    if min(named.offset) < 0 and not allow_negative:
        raise ValueError(f"offset must not be negative, got {named.offset}")
    return array, named


def positive_lengths(voxel_size: Sequence[float]) -> Lengths:
    """Take the edge lengths of a voxel along x, y, z [nm] as a user gives them."""
    sizes = tuple(voxel_size)
    if len(sizes) != 3 or not all(0 < length < float("inf") for length in sizes):
        raise ValueError(f"voxel_size must be three positive numbers (x, y, z) in nanometres, got {voxel_size!r}")
    return sizes[0], sizes[1], sizes[2]


def given_size(voxel_size: Sequence[float] | None, named: Named, mag: Mag) -> Lengths | None:
    """Give the edge lengths of a voxel of mag 1 [nm]: as a user says them, else by what an array of a mag says of itself, None where nobody does."""
    if voxel_size is not None:
        return positive_lengths(voxel_size)
    return None if named.lengths_nm is None else ratio_of(named.lengths_nm, mag.factors)


def content_of(array: Any, token: str | None) -> Content:
    """Describe an array, so that a later call knows it again."""
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token must be a text, got {token!r}")
    in_memory = isinstance(array, np.ndarray)
    fingerprint = "" if token is not None else _fingerprint(array)  # the token is compared in its place
    return Content(array.shape, array.dtype, fingerprint, token, in_memory)


def _fingerprint(array: Any) -> str:
    """Hash an array in memory, shape (c, x, y, z), by cubes: the same in any memory order, without a copy of the whole; name any other one by its graph."""
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        return str(dask.base.tokenize(array))
    digest = hashlib.blake2b(repr((array.shape, array.dtype.str)).encode(), digest_size=16)
    bits = array.view(f"u{array.itemsize}") if array.itemsize in (1, 2, 4, 8) else array
    starts = [range(0, n, _CUBE) for n in array.shape[1:]]
    memory = np.empty(len(bits) * _CUBE**3, bits.dtype)
    for x, y, z in product(*starts):
        cube = bits[:, x : x + _CUBE, y : y + _CUBE, z : z + _CUBE]
        ordered = memory[: cube.size].reshape(cube.shape, order="F")
        copy_into(cube, ordered)
        digest.update(fold(ordered))
    return digest.hexdigest()
