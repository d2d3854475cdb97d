"""Images whose levels are arrays: groups of N5 datasets or Zarr arrays, or a single array."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from wkwdask.formats.identity import OneFileIdentity, read_record_state
from wkwdask.model.image import Image, Level, ResolvedUrl
from wkwdask.model.levels import finest_first, is_number, length_nm, ratio_of
from wkwdask.model.naming import OneFile
from wkwdask.model.stored_array import StoredArray
from wkwdask.store.paths import split
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.chunk_grid import ChunkGrid
    from wkwdask.model.codec import ChunkCodec
    from wkwdask.model.image import Container
    from wkwdask.model.layout import ShardLayout
    from wkwdask.model.levels import Lengths


_HALF_VOXEL, _ROUNDING = 0.5, 1e-6


class ArrayGeometry(NamedTuple):
    """Axes, mag and position of an array among the levels of its image."""

    axes: str
    """One letter per axis, first to last: ``x``, ``y``, ``z``, ``c``, or ``-`` for another axis,
    along which one index is read."""
    mag: Mag | None
    """Mag relative to the finest level, None if the ratio is no power of two."""
    lengths_nm: Lengths | None
    """Edge lengths of a voxel [nm], None if unknown."""
    offset: Vec3
    """Absolute first voxel [voxels of the mag]."""
    positions: tuple[int, ...] = ()
    """Index along each axis named ``-``, by default 0."""


def xyz_values(values: Any, letters: Sequence[str], default: float) -> Lengths | None:
    """Return the values of x, y and z from a list of one number per axis, the default for an absent
    axis; None if it is no such list."""
    if not isinstance(values, (list, tuple)) or len(values) != len(letters):
        return None
    by_letter = dict(zip(letters, values, strict=True))
    x, y, z = (by_letter.get(letter, default) for letter in "xyz")
    return (
        (float(x), float(y), float(z)) if is_number(x) and is_number(y) and is_number(z) else None
    )


def nm_per_unit(units: Mapping[str, Any], default: Any) -> Lengths | None:
    """Return the nanometers per unit along x, y, z, by the letters of axes, the default unit for an
    absent axis; None if a unit is no length."""
    with contextlib.suppress(ValueError):
        x, y, z = (length_nm(1.0, str(units.get(letter, default))) for letter in "xyz")
        return x, y, z
    return None


def guess_ratio(finer: Sequence[float], coarser: Sequence[float]) -> Lengths:
    """Guess the downsampling factors from the shapes of two levels along x, y, z: the nearest
    powers of two."""
    x, y, z = (
        2.0 ** round(math.log2(max(1, a) / max(1, b))) for a, b in zip(finer, coarser, strict=True)
    )
    return x, y, z


def place_fault(
    finest: tuple[int, float, float], level: tuple[int, float, float]
) -> tuple[str, str, str] | None:
    """Return kind, found and expected values if the voxels of a level along an axis do not cover
    those of the finest one.

    Each level is given by length, scale and translation.
    """
    (first_length, first_scale, first_shift), (length, scale, shift) = finest, level
    # A level may lack a part of a voxel at the upper end (lengths rounded down) and reach beyond
    # both ends by less than a voxel (boxes aligned outward).
    covered = first_length * first_scale / scale
    if not covered - 1 + _ROUNDING < length < covered + 2:
        expected = (
            f"about {covered:.1f}, since the finest level has {first_length} voxels of size "
            f"{first_scale:g}"
        )
        return "image.scale", f"{length} voxels of size {scale:g}", expected
    # Translations are centers of the first voxels. Software that does not shift coarser levels, or
    # shifts by corners, stays within half a voxel.
    low = ((shift - scale / 2) - (first_shift - first_scale / 2)) / scale
    high = low + length - covered
    is_aligned_outward = low > -1 - _ROUNDING and high > -_ROUNDING
    if low > _HALF_VOXEL + _ROUNDING or (low < -_HALF_VOXEL - _ROUNDING and not is_aligned_outward):
        center = first_shift + (scale - first_scale) / 2
        return (
            "image.translation",
            f"a translation of {shift:g}",
            f"{center:g} or at most half a voxel ({scale / 2:g}) from it",
        )
    return None


def array_level(key: str, volume: StoredArray, mag: Mag | None, offset: Vec3 = (0, 0, 0)) -> Level:
    """Return the level of an array whose first voxel is ``offset`` [voxels of its mag]."""
    return Level(key, volume.name, partial(volume.moved, offset), mag, volume.lengths_nm)


def array_in_file(
    path: str,
    inside: str,
    grid: ChunkGrid,
    layout: ShardLayout,
    codec: ChunkCodec,
    dtype: np.dtype[Any],
    **others: Any,
) -> StoredArray:
    """Return an array whose chunks all lie in one file, at a path ``inside`` it; ``others`` are
    fields of :class:`StoredArray`."""
    folder, name = split(path)
    store = open_store(folder)
    identity = OneFileIdentity(store, name, read_record_state(store, name))
    return StoredArray(store, grid, OneFile(name, inside), layout, codec, dtype, identity, **others)


def array_image(
    format_name: str,
    folder: str,
    name: str,
    levels: Sequence[Level],
    key: str | None = None,
    category: str | None = None,
) -> Image:
    """Return the image of arrays of the same voxels at several mags; a single array has an empty
    key."""
    ordered = [
        levels[n]
        for n in finest_first(
            [None if level.mag is None else level.mag.factors for level in levels]
        )
    ]
    ordered = [
        *(level for level in ordered if not level.problem),
        *(level for level in ordered if level.problem),
    ]
    sizes = ((level.lengths_nm, level.mag) for level in ordered if not level.problem)
    voxel_size = next(
        (
            ratio_of(lengths, mag.factors)
            for lengths, mag in sizes
            if lengths is not None and mag is not None
        ),
        None,
    )
    return Image(format_name, folder, name, lambda: ordered, key, category, voxel_size)


def resolved_images(
    url: str | os.PathLike[str],
    images: tuple[Image, ...],
    container: Container | None = None,
) -> ResolvedUrl:
    """Return a resolved URL for the images that a path or URL contains; ``container`` is that of a
    format that writes."""
    images = tuple(replace(image, container=container) for image in images)
    return (
        ResolvedUrl(images[0].folder, images, images[0].mag)
        if len(images) == 1
        else ResolvedUrl(os.fspath(url), images)
    )


def images_below(location: str, images: Iterable[Image]) -> tuple[Image, ...]:
    """Return the images that were found in a folder, which is their root."""
    return tuple(
        image if image.folder == location else replace(image, root=location) for image in images
    )
