"""Conversion of xarray coordinates along x, y, z to voxel indices and voxel sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.model.levels import length_nm, nm_per_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

VOXEL = "voxel"
"""Unit of coordinates in voxels of mag 1, if the voxel size is unknown."""

_TOLERANCE = 1e-3  # of a voxel
_LARGEST_TOLERANCE = 0.1
_SAME_LENGTH = 1e-6  # relative: lengths are rounded in text, or are differences of large numbers


@dataclass(frozen=True, slots=True)
class Spacing:
    """Regular values of a coordinate, one per voxel."""

    units: str | None
    """Unit, None for voxel numbers."""
    first: float
    """First value [units]."""
    last: float
    """Last value [units]."""
    step: float | None
    """Distance between neighbouring values [units], None for a single value of unknown voxel
    size."""
    length_nm: float | None
    """The same distance [nm], None without a unit of length."""
    is_opened: bool = False
    """Whether the values derive from an opened array: they are centers of voxels, never corners."""


def spacing_of(coordinate: Any, axis: str) -> Spacing:
    """Return the spacing of a coordinate; raises ValueError if it is not regular."""
    if coordinate.dtype.kind not in "iuf":
        raise ValueError(
            f"coordinate {axis}: must be numeric, got {coordinate.dtype}; give offset= or drop it"
        )
    values = np.atleast_1d(np.asarray(coordinate.values, np.float64))
    if not values.size:
        raise ValueError(
            f"coordinate {axis}: has no values, so position and size of voxels are unknown"
        )
    units = coordinate.attrs.get("units")
    scale = None if units in (None, VOXEL) else nm_per_unit(str(units))
    if units not in (None, VOXEL) and scale is None:
        raise ValueError(
            f"coordinate {axis}: units must be a unit of length such as nm, got {units!r}; give "
            "offset= if the coordinate is no position"
        )
    known = _known_length(coordinate.attrs, scale)
    per_unit = 1.0 if scale is None else scale
    if units is None:
        step: float | None = 1.0
    elif len(values) > 1:
        step = (
            _exact(float(values[-1] - values[0]) / (len(values) - 1) * per_unit, known) / per_unit
        )
    else:
        step = None if known is None else known * coordinate.attrs.get("mag", 1) / per_unit
    if step is not None and (
        not step > 0
        or not np.allclose(
            values, values[0] + step * np.arange(len(values)), rtol=0, atol=_TOLERANCE * step
        )
    ):
        raise ValueError(
            f"coordinate {axis}: must rise in even steps{' of 1 voxel' if units is None else ''}, "
            f"got {values[:4]}...; give offset= and drop it"
        )
    in_nm = None if scale is None or step is None else _exact(length_nm(step, str(units)), known)
    return Spacing(
        units,
        float(values[0]),
        float(values[-1]),
        step,
        in_nm,
        known is not None and "mag" in coordinate.attrs,
    )


def first_voxel(spacing: Spacing, axis: str) -> int:
    """Return the index of the first voxel, whose corner or center is the first value."""
    if spacing.step is None:
        raise ValueError(
            f"coordinate {axis}: one value in {spacing.units} does not determine the size of a "
            "voxel; give offset="
        )
    first = spacing.first / spacing.step
    # rounding errors of float steps add up
    tolerance = min(_LARGEST_TOLERANCE, _TOLERANCE * max(1.0, abs(first) * 1e-3))
    for shift in (0.5,) if spacing.is_opened else (0.0, 0.5):
        # 0.5: the value is the center of a voxel; 0: its corner
        if abs(first - shift - round(first - shift)) < tolerance:
            return round(first - shift)
    expected = "not the center" if spacing.is_opened else "neither the corner nor the center"
    raise ValueError(
        f"coordinate {axis}: starts at {spacing.first:g}, which is {first:g} voxels: {expected} of "
        "a voxel; give offset="
    )


def same_lengths(lengths: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether two voxel sizes are equal up to rounding and measuring errors.

    Examples
    --------
    >>> same_lengths((11.24, 11.24, 28), (11.239999771118164, 11.239999771118164, 28))
    True
    """
    return all(
        math.isclose(length, other, rel_tol=10 * _SAME_LENGTH)
        for length, other in zip(lengths, others, strict=True)
    )


def _known_length(attrs: dict[str, Any], scale: float | None) -> float | None:
    """Return the edge length of a mag-1 voxel in the attributes of an opened array [nm], or 1 if
    the unit is that voxel."""
    if scale is None:
        return 1.0 if attrs.get("units") == VOXEL else None
    known = attrs.get("voxel_size_nm")
    return float(known) if isinstance(known, (int, float)) and known > 0 else None


def _exact(step: float, known: float | None) -> float:
    """Replace a measured length by the exact length of a voxel of some mag, if they are close."""
    if known is None or not step > 0:
        return step
    exact = known * 2.0 ** round(math.log2(step / known))
    return exact if math.isclose(step, exact, rel_tol=_SAME_LENGTH) else step
