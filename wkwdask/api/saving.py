"""Write a dask, numpy or xarray array as one level of an image in any format."""

from __future__ import annotations

import hashlib
import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import dask.base
import numpy as np

from wkwdask.api.options import level_destination, parse_voxel_size
from wkwdask.errors import ExistsError, ReplacedError
from wkwdask.formats.opening import is_dataset, open_in_place, options_of_target, target_for
from wkwdask.formats.registry import default_format
from wkwdask.formats.webknossos.datasource import FILE_NAME
from wkwdask.geometry.bounding_box import voxel_box
from wkwdask.geometry.mag import Vec3, vec3
from wkwdask.graphs.write import write_array
from wkwdask.kernels.arrays import quick_hash_in_order
from wkwdask.model.coordinates import first_voxel, spacing_of
from wkwdask.model.levels import ratio_of
from wkwdask.model.options import make_options
from wkwdask.runs.job_records import holds_only_jobs
from wkwdask.runs.staged import ArrayContent
from wkwdask.store.looks import looking
from wkwdask.store.paths import dirname, target_path
from wkwdask.streams.converted import exact_values
from wkwdask.verbs.write import lay_out_region, lay_out_write

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from dask.delayed import Delayed

    from wkwdask.api.options import MagLike
    from wkwdask.formats.format import ArrayFormat
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.levels import Lengths
    from wkwdask.model.writing.target_image import Destination, TargetImage
    from wkwdask.runs.report import Report
    from wkwdask.runs.staged import StagedMags

_DIMS = "cxyz"
_PART = 512, 8, 64
"""Voxels that are hashed at a time: long columns of arrays in Fortran order, and whole lines of the
cache of arrays in C order."""


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """Position and voxel size of an array, from the coordinates of an ``xarray.DataArray``."""

    offset: Vec3
    """Absolute voxel of element 0 along x, y, z."""
    lengths_nm: Lengths | None
    """Edge lengths of the voxels along x, y, z [nm], None if the length along an axis is
    unknown."""
    category: str | None
    """``"color"`` or ``"segmentation"``, None if unknown."""


def _split_data_array(array: Any, *, placed: bool) -> tuple[Any, _Coordinates]:
    """Return the data of an ``xarray.DataArray`` in the order (c, x, y, z), and its coordinates."""
    array = array.expand_dims(
        [
            axis
            for axis in "xyz"
            if axis not in array.dims and axis in array.coords and array.coords[axis].ndim == 0
        ]
    )
    dims = [str(dim) for dim in array.dims]
    if sorted(dims) not in (sorted("xyz"), sorted("cxyz")):
        raise ValueError(
            f"the dimensions must be x, y, z (and c) in any order, got {array.dims}; rename() them"
        )
    ordered = array.transpose(*(dim for dim in _DIMS if dim in dims))
    data = ordered.data if "c" in dims else ordered.data[np.newaxis]
    category = array.attrs.get("category")
    category = category if category in ("color", "segmentation") else None
    placed_axes = (
        []
        if placed
        else [axis for axis in "xyz" if axis in array.coords and array.coords[axis].size]
    )
    spacings = {axis: spacing_of(array.coords[axis], axis) for axis in placed_axes}
    x, y, z = (first_voxel(spacings[axis], axis) if axis in placed_axes else 0 for axis in "xyz")
    lengths = [spacing.length_nm for spacing in spacings.values() if spacing.length_nm is not None]
    return data, _Coordinates(
        (x, y, z), (lengths[0], lengths[1], lengths[2]) if len(lengths) == 3 else None, category
    )


def normalize_array(
    array: Any, offset: Sequence[int] | None, *, allow_negative: bool = False
) -> tuple[Any, _Coordinates]:
    """Check an array and return it with the axes (c, x, y, z), and its coordinates."""
    coordinates = _Coordinates((0, 0, 0), None, None)
    if hasattr(array, "coords") and hasattr(array, "data"):
        array, coordinates = _split_data_array(array, placed=offset is not None)
    if not hasattr(array, "ndim") or isinstance(array, np.ma.MaskedArray) or hasattr(array, "dims"):
        raise TypeError(
            "the array must be a dask or numpy array or an xarray DataArray (fill a masked one), "
            f"got {type(array).__name__}"
        )
    if array.ndim not in (3, 4):
        raise ValueError(
            f"the array must have the shape (x, y, z) or (c, x, y, z), got {array.shape}"
        )
    if array.ndim == 3:
        array = array[np.newaxis]
    if isinstance(getattr(array, "_meta", None), np.ma.MaskedArray):
        raise TypeError("the array holds masked arrays: fill it (dask.array.ma.filled)")
    if any(n != n for n in array.shape):
        raise ValueError("the shape of the array is unknown; call its compute_chunk_sizes() first")
    if offset is not None:
        coordinates = replace(coordinates, offset=vec3(offset, "offset"))
    if min(coordinates.offset) < 0 and not allow_negative:
        raise ValueError(f"offset must not be negative, got {coordinates.offset}")
    return array, coordinates


def _content_of(array: Any, token: str | None) -> ArrayContent:
    """Return the identity of an array, which a later call compares before it resumes."""
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token must be a str, got {token!r}")
    in_memory = isinstance(array, np.ndarray)
    # a token replaces the fingerprint
    fingerprint = "" if token is not None else _fingerprint(array)
    return ArrayContent(array.shape, array.dtype, fingerprint, token, in_memory)


def _fingerprint(array: Any) -> str:
    """Hash a numpy array, shape (c, x, y, z), or return the name of a dask array's graph.

    Parts are hashed one after the other. The result does not depend on the memory order, and no
    copy of the whole array is needed.
    """
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        return str(dask.base.tokenize(array))
    digest = hashlib.blake2b(repr((array.shape, array.dtype.str)).encode(), digest_size=16)
    # Hash bit patterns: 0.0 and -0.0 are different content, and so are two kinds of NaN.
    bits = array.view(f"u{array.itemsize}") if array.itemsize in (1, 2, 4, 8) else array
    # Each part is hashed in Fortran order (c fastest, then x), which makes the hash independent of
    # the array's own memory order.
    starts = [range(0, n, step) for n, step in zip(array.shape[1:], _PART, strict=True)]
    memory = np.empty(len(bits) * math.prod(_PART), bits.dtype)
    for z, y, x in product(*reversed(starts)):
        part = bits[:, x : x + _PART[0], y : y + _PART[1], z : z + _PART[2]]
        digest.update(quick_hash_in_order(part, memory))
    return digest.hexdigest()


def _of_type(voxels: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array in the type of the level that gets it; raises BoundsError, for a dask array
    in its tasks, for a value that the type does not have."""
    if voxels.dtype.newbyteorder("=") == dtype:
        return voxels
    if isinstance(voxels, np.ndarray):
        return exact_values(voxels, dtype)
    return voxels.map_blocks(exact_values, dtype, dtype=dtype, meta=voxels._meta.astype(dtype))


@looking()
def save_as(
    its_format: ArrayFormat,
    array: Any,
    url: str | os.PathLike[str],
    *,
    offset: Sequence[int] | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    voxel_size: Sequence[float] | None = None,
    mag: MagLike | None = None,
    category: str | None = None,
    existing: str = "error",
    token: str | None = None,
    allow_external: bool = False,
    force_space: bool = False,
    compute: bool = True,
    **storage: Any,
) -> Report | Delayed:
    """Write an array as one level of an image of a format, or into a region of an existing level.
    Return a Report, or a Delayed of one."""
    is_dataset = its_format is default_format()
    options: Any = make_options(
        options_of_target(url) if is_dataset else its_format.options, **storage
    )
    destination = level_destination(its_format, url, mag, category, allow_external=allow_external)
    if region is not None:
        _refuse_options_of_new_levels(destination, offset, voxel_size, options)
        offset = (0, 0, 0)
    voxels, coordinates = normalize_array(array, offset, allow_negative=destination.needs_container)
    content = _content_of(voxels, token)
    staged: StagedMags
    if region is not None:
        stage = partial(_stage_region, destination, region, content, options, existing)
        try:
            staged = stage()
        except ReplacedError:
            # the first attempt completed an interrupted job, which replaced the mag
            staged = stage()
        voxels = _of_type(voxels, staged.targets[0].dtype)
    else:
        target_image = _new_image(destination, coordinates, voxel_size)
        staged, notes = lay_out_write(
            target_image, coordinates.offset, content, options, existing, f"to_{options.name}"
        )
        for note in notes:
            warnings.warn(note, stacklevel=4)
        if staged.edit is None and not destination.needs_container:
            warnings.warn(no_dataset_note(staged.folders[0]), stacklevel=4)
    try:
        written: Report | Delayed = write_array(
            staged, voxels, content.trust_note, compute=compute, force_space=force_space
        )
    except ExistsError as error:
        if existing != "error" or region is not None:
            raise
        raise ExistsError(f"{error}, region= writes a part of it") from None
    return written


def _refuse_options_of_new_levels(
    destination: Destination,
    offset: Sequence[int] | None,
    voxel_size: Sequence[float] | None,
    options: Any,
) -> None:
    """Raise ValueError for options that do not apply to a region of an existing level."""
    new_level_options = {
        "category": destination.category,
        "offset": offset,
        "voxel_size": voxel_size,
        **options.explicit(),
    }
    refused = [
        name
        for name, value in new_level_options.items()
        if value is not None and not (name == "level" and options.writes_level)
    ]
    if refused:
        raise ValueError(
            f"region= writes into an existing mag; {', '.join(refused)}= is for a new one"
        )


def _stage_region(
    destination: Destination,
    region: BoundingBox | Sequence[Sequence[int]],
    content: ArrayContent,
    options: Any,
    existing: str,
) -> StagedMags:
    """Plan the write into a region of an existing level."""
    image, volume = open_in_place(
        destination.url, destination.mag, allow_external=destination.allow_external
    )
    box, level = voxel_box(region, volume.box.mag, "region"), getattr(options, "level", None)
    return lay_out_region(image, volume, box, content, level, existing)


def _new_image(
    destination: Destination, coordinates: _Coordinates, voxel_size: Sequence[float] | None
) -> TargetImage:
    """Return the image of a new level, with the voxel size that the call or else the coordinates
    of the array state."""
    size = None if voxel_size is None else parse_voxel_size(voxel_size)
    lengths_nm = coordinates.lengths_nm
    is_empty_folder = (
        not destination.needs_container
        and lengths_nm is not None
        and holds_only_jobs(dirname(dirname(target_path(destination.url))))
    )
    destination = replace(
        destination,
        voxel_size_nm=size,
        category=destination.category or coordinates.category,
        is_empty_folder=is_empty_folder,
    )
    target_image = target_for(destination)
    if size is not None or lengths_nm is None:
        return target_image
    voxel_size_nm = ratio_of(lengths_nm, target_image.mag.factors)
    placed = replace(target_image.destination, coordinate_voxel_size_nm=voxel_size_nm)
    return replace(target_image, destination=placed)  # type: ignore[type-var]


def no_dataset_note(folder: str) -> str:
    """Return the warning about a mag outside of any dataset, with remedies."""
    dataset = dirname(dirname(folder))
    if is_dataset(dataset):
        return (
            f"{folder}: belongs to no layer of {dataset}, because it is not named like a mag, such "
            f"as {dirname(folder)}/1: only the mag itself stores its box"
        )
    return (
        f"{folder}: belongs to no dataset, because {dataset}/{FILE_NAME} does not exist: only the "
        "mag itself stores its box. "
        "Pass voxel_size=(x, y, z) in nm to create the dataset, or create it first with "
        f"wkwdask.create_dataset({dataset!r}, (x, y, z))"
    )
