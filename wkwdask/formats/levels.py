"""Arrays of one volume at several resolutions, as groups of N5 and OME-NGFF describe them: by lengths of voxels and places of their centres."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from wkwdask.geometry.mag import Mag, Vec3, vec3

if TYPE_CHECKING:
    from collections.abc import Sequence

Lengths = tuple[float, float, float]
"""Along x, y, z."""

_TOLERANCE = 1e-3  # of a ratio of two lengths, which are often rounded
_BETWEEN = 0.01  # of a voxel: what is nearer to one lies on it


def times(values: Sequence[float], factors: Sequence[float]) -> Lengths:
    """Multiply along each axis, to twelve digits.

    Examples
    --------
    >>> times((0.0112, 2, 3), (1000, 1, 2))
    (11.2, 2.0, 6.0)
    """
    x, y, z = (float(f"{value * factor:.12g}") for value, factor in zip(values, factors, strict=True))
    return x, y, z


def ratio_of(lengths: Sequence[float], base: Sequence[float]) -> Lengths:
    """Say how many voxels of another array one spans along each axis."""
    x, y, z = (length / unit for length, unit in zip(lengths, base, strict=True))
    return x, y, z


def mag_of(ratio: Sequence[float] | None) -> Mag | None:
    """Turn a ratio of lengths into a mag, None where it is none.

    Examples
    --------
    >>> mag_of((2.0001, 2, 1)), mag_of((3, 3, 3))
    (Mag(2, 2, 1), None)
    """
    if ratio is None or any(not math.isfinite(factor) or abs(factor - round(factor)) > _TOLERANCE * factor for factor in ratio):
        return None
    with contextlib.suppress(ValueError):
        return Mag.parse([round(factor) for factor in ratio])
    return None


def offset_of(centre: Sequence[float], base: Sequence[float], ratio: Sequence[float]) -> Vec3 | None:
    """Turn the centre of an array's first voxel into the voxel of its mag at which it starts.

    Parameters
    ----------
    centre : sequence of 3 float
        Where the centre lies, in any unit; that of the finest array's voxel 0 is the origin.
    base : sequence of 3 float
        Edge lengths of a voxel of the finest array.
    ratio : sequence of 3 float
        How many of these one voxel spans.

    Returns
    -------
    tuple of 3 int or None
        None where it lies between two voxels.

    Examples
    --------
    >>> offset_of((6, 38, 6), (4, 4, 4), (4, 4, 4))
    (0, 2, 0)
    """
    found = []
    for place, unit, factor in zip(centre, base, ratio, strict=True):
        voxel = (place / unit - (factor - 1) / 2) / factor
        if not math.isfinite(voxel) or abs(voxel - round(voxel)) > _BETWEEN or abs(voxel) > 1 << 53:
            return None
        found.append(round(voxel))
    return vec3(found)
