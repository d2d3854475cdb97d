"""Arrays as people have them, brought into the form that writers take: (c, x, y, z), and the absolute voxel of element 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask.base
import numpy as np

from wkwdask.formats.datasource import nm_per_unit
from wkwdask.geometry.mag import Vec3, vec3
from wkwdask.jobs.wkw_write import Content

if TYPE_CHECKING:
    from collections.abc import Sequence

_DIMS = "cxyz"
_TOLERANCE = 1e-3  # of a voxel
_LARGEST_TOLERANCE = 0.1


def named_axes(array: Any, *, placed: bool) -> tuple[Any, Vec3 | None]:
    """Take the array out of an ``xarray.DataArray``, in the order (c, x, y, z).

    Parameters
    ----------
    array : DataArray
        With the dimensions x, y, z, and c where there are channels, in any order.
    placed : bool
        Whether it is known where it goes: then coordinates are not looked at.

    Returns
    -------
    array : dask.array.Array or ndarray, shape (c, x, y, z)
    offset : tuple of 3 int, optional
        Absolute voxel of element 0, where the coordinates say so; None where there are none.

    Raises
    ------
    ValueError
        Dimensions have other names, or coordinates are no even steps of voxels.
    """
    dims = [str(dim) for dim in array.dims]
    if sorted(dims) not in (sorted("xyz"), sorted("cxyz")):
        raise ValueError(f"the dimensions must be named x, y, z (and c), in any order, got {array.dims}; rename() them")
    ordered = array.transpose(*(dim for dim in _DIMS if dim in dims))
    data = ordered.data if "c" in dims else ordered.data[np.newaxis]
    known = [axis for axis in "xyz" if axis in array.coords and array.coords[axis].size]
    if placed or not known:
        return data, None
    x, y, z = (_first_voxel(array.coords[axis], axis) if axis in known else 0 for axis in "xyz")
    return data, (x, y, z)


def _first_voxel(coordinate: Any, axis: str) -> int:
    """Find the voxel of the first value: voxel numbers as they are, lengths divided by the length of a voxel."""
    if coordinate.dtype.kind not in "iuf":
        raise ValueError(f"coordinate {axis}: must be numbers, got {coordinate.dtype}; give offset= or drop it")
    values = np.asarray(coordinate.values, np.float64)
    units = coordinate.attrs.get("units")
    if units is None:
        step = 1.0
    elif (scale := nm_per_unit(str(units))) is None:
        raise ValueError(f"coordinate {axis}: units must be a length such as nm, got {units!r}; give offset= where the coordinate is something else")
    elif len(values) > 1:
        step = float(values[-1] - values[0]) / (len(values) - 1)
    else:
        raise ValueError(f"coordinate {axis}: one value in {units} does not tell how long a voxel is ({scale:g} nm per unit); give offset=")
    if not step > 0 or not np.allclose(values, values[0] + step * np.arange(len(values)), rtol=0, atol=_TOLERANCE * step):
        raise ValueError(f"coordinate {axis}: must rise in even steps{' of 1 voxel' if units is None else ''}, got {values[:4]}...; give offset= and drop it")
    first = float(values[0]) / step
    tolerance = min(_LARGEST_TOLERANCE, _TOLERANCE * max(1.0, abs(first) * 1e-3))  # steps of floats add up
    for shift in (0.0, 0.5):  # corners of voxels, or their centres
        if abs(first - shift - round(first - shift)) < tolerance:
            return round(first - shift)
    raise ValueError(f"coordinate {axis}: starts at {values[0]:g}, which is {first:g} voxels: neither the corner nor the centre of a voxel; give offset=")


def plain_array(array: Any, offset: Sequence[int] | None) -> tuple[Any, Vec3]:
    """Bring an array into the form that writers take.

    Parameters
    ----------
    array : dask.array.Array, ndarray or DataArray
        What a user gives.
    offset : sequence of 3 int, optional
        Where element 0 goes; by default as the coordinates say, else 0.

    Returns
    -------
    array : dask.array.Array or ndarray, shape (c, x, y, z)
    offset : tuple of 3 int

    Raises
    ------
    TypeError
        It is no array, or a masked one.
    ValueError
        Shape, coordinates or offset make no sense.
    """
    coordinates = None
    if hasattr(array, "coords") and hasattr(array, "data"):
        array, coordinates = named_axes(array, placed=offset is not None)
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
    topleft = vec3(offset, "offset") if offset is not None else coordinates or (0, 0, 0)
    if min(topleft) < 0:
        raise ValueError(f"offset must not be negative, got {topleft}")
    return array, topleft


def content_of(array: Any, token: str | None) -> Content:
    """Describe an array, so that a later call knows it again."""
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token must be a text, got {token!r}")
    in_memory = isinstance(array, np.ndarray)
    fingerprint = dask.base.tokenize(np.ascontiguousarray(array) if in_memory else array)  # the same in any memory order
    return Content(array.shape, array.dtype, fingerprint, token, in_memory)
