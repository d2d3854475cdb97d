"""Images whose levels are arrays of a group, N5 datasets or Zarr arrays, or one array alone."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from wkwdask.model.image import Image, Level, ResolvedUrl
from wkwdask.model.levels import ratio_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.stored_array import StoredArray


class ArrayGeometry(NamedTuple):
    """Where an array lies among the others of its image."""

    axes: str
    """A letter for each axis, first to last: ``x``, ``y``, ``z``, ``c``, or ``-`` for another one of length 1."""
    mag: Mag | None
    """Its mag relative to the finest one, None where the ratio is no power of two."""
    lengths_nm: Lengths | None
    """Edge lengths of its voxels [nm], None where nobody says them."""
    offset: Vec3
    """Absolute voxel of the mag at which it starts."""


def axis_letters(names: Iterable[str]) -> list[str]:
    """Give the letter of each axis by its name, ``-`` for one that is neither x, y, z nor channels."""
    return [name if name in ("x", "y", "z") else "c" if name in ("c", "channel", "ch") else "-" for name in names]


def array_level(key: str, volume: StoredArray, mag: Mag | None, offset: Vec3 = (0, 0, 0)) -> Level:
    """Make the level of an array, which starts at an absolute voxel of its mag."""
    return Level(key, volume.name, partial(volume.moved, offset), mag, volume.lengths_nm)


def array_image(stored: str, folder: str, name: str, levels: Sequence[Level], key: str | None = None, category: str | None = None) -> Image:
    """Make the image of arrays of the same voxels, or of one array, whose key is empty."""
    measured = ((level.lengths_nm, level.mag) for level in levels if not level.problem)
    size = next((ratio_of(lengths, mag.factors) for lengths, mag in measured if lengths is not None and mag is not None), None)
    return Image(stored, folder, name, lambda: levels, key, category, size)


def found_images(url: str | os.PathLike[str], images: tuple[Image, ...]) -> ResolvedUrl:
    """Give what a path or URL means that holds some images."""
    return ResolvedUrl(images[0].folder, images, images[0].mag) if len(images) == 1 else ResolvedUrl(os.fspath(url), images)
