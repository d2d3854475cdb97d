"""Arithmetic of pyramids: units of length, ratios of voxel sizes, mags and offsets, as N5 groups
and OME-NGFF describe them."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, TypeGuard

from wkwdask.geometry.mag import Mag, Vec3, vec3

if TYPE_CHECKING:
    from collections.abc import Sequence


_NM_PER_UNIT = {
    "yoctometer": 1e-15,
    "zeptometer": 1e-12,
    "attometer": 1e-9,
    "femtometer": 1e-6,
    "picometer": 1e-3,
    "nanometer": 1.0,
    "micrometer": 1e3,
    "millimeter": 1e6,
    "centimeter": 1e7,
    "decimeter": 1e8,
    "meter": 1e9,
    "decameter": 1e10,
    "hectometer": 1e11,
    "kilometer": 1e12,
    "megameter": 1e15,
    "gigameter": 1e18,
    "terameter": 1e21,
    "petameter": 1e24,
    "exameter": 1e27,
    "zettameter": 1e30,
    "yottameter": 1e33,
    "angstrom": 0.1,
    "inch": 2.54e7,
    "foot": 3.048e8,
    "yard": 9.144e8,
    "mile": 1.609344e12,
    "parsec": 3.0856775814913673e25,
}
_SHORT_UNITS = {
    "nm": "nanometer",
    "um": "micrometer",
    "micron": "micrometer",
    "µm": "micrometer",
    "μm": "micrometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "m": "meter",
    "pm": "picometer",
    "Å": "angstrom",
}


def length_nm(length: float, unit: str) -> float:
    """Convert a length to nanometers.

    Examples
    --------
    >>> length_nm(0.25, "um")
    250.0
    """
    per_unit = _NM_PER_UNIT.get(unit_name(unit))
    if per_unit is None:
        raise ValueError(
            f"unit must be a unit of length such as {', '.join(_SHORT_UNITS)}, got {unit!r}"
        )
    # 12 digits: 0.00404 micrometers are 4.04 nanometers, not 4.0399999999999997
    return float(f"{length * per_unit:.12g}")


def nm_per_unit(unit: str) -> float | None:
    """Return the length of a unit [nm], None if it is no unit of length."""
    return _NM_PER_UNIT.get(unit_name(unit))


def unit_name(unit: str) -> str:
    """Return the long name of a unit, as WEBKNOSSOS writes it.

    Examples
    --------
    >>> unit_name("um")
    'micrometer'
    """
    return _SHORT_UNITS.get(unit, unit)


Lengths = tuple[float, float, float]
"""Three lengths along x, y, z."""

# relative, of a ratio of lengths: other software rounds voxel sizes, and derives them from rounded
# array sizes
_TOLERANCE = 0.02
_ROUNDING = 1e-3  # relative, of a ratio of shapes that is stated as a ratio of lengths
_MAX_OFFSET = 1 << 53  # largest offset: floats hold larger integers inexactly
_MAX_NUMBER = 1e100  # products of a few such numbers stay finite
_HALF = 0.499  # of a voxel: a position halfway between two voxels is rounded down


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a JSON value is a number, and small enough for arithmetic with floats."""
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER
    )


def is_whole_number(value: object) -> bool:
    """Return whether a JSON value is an integer; 64.0 is one too."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value) and value == int(value)
    )


def scale_lengths(values: Sequence[float], factors: Sequence[float]) -> Lengths:
    """Multiply along each axis, rounded to twelve digits.

    Examples
    --------
    >>> scale_lengths((0.0112, 2, 3), (1000, 1, 2))
    (11.2, 2.0, 6.0)
    """
    x, y, z = (
        float(f"{value * factor:.12g}") for value, factor in zip(values, factors, strict=True)
    )
    return x, y, z


def ratio_of(lengths: Sequence[float], base: Sequence[float]) -> Lengths:
    """Return the ratio of two voxel sizes along each axis."""
    x, y, z = (length / unit for length, unit in zip(lengths, base, strict=True))
    return x, y, z


def lengths_in(mag: Mag, size: Sequence[float]) -> Lengths:
    """Return the edge lengths of a voxel of a mag, given those of mag 1."""
    x, y, z = (length * factor for length, factor in zip(size, mag.factors, strict=True))
    return x, y, z


def finest_first(sizes: Sequence[Sequence[float] | None]) -> list[int]:
    """Return the indexes of levels by the volume of their voxels, finest first.

    Equal ones keep their order. A level of unknown size stays behind the one listed before it.

    Examples
    --------
    >>> finest_first([(16, 16, 40), None, (8, 8, 40)])
    [2, 0, 1]
    """
    keys = [-math.inf]
    for size in sizes:
        # Lengths are often rounded, which must not order levels of the same size.
        keys.append(
            round(sum(map(math.log2, size)), 2)
            if size is not None and all(length > 0 for length in size)
            else keys[-1]
        )
    return sorted(range(len(sizes)), key=lambda n: keys[n + 1])


def mag_from_ratio(ratio: Sequence[float] | None) -> Mag | None:
    """Convert a ratio of voxel sizes to a mag, None if it is not close to powers of two.

    Examples
    --------
    >>> mag_from_ratio((2.0001, 2, 1)), mag_from_ratio((3, 3, 3))
    (Mag(2, 2, 1), None)
    """
    if ratio is None or any(
        not math.isfinite(factor) or abs(factor - round(factor)) > _TOLERANCE * factor
        for factor in ratio
    ):
        return None
    with contextlib.suppress(ValueError):
        return Mag.parse([round(factor) for factor in ratio])
    return None


def factors_by_shapes(
    ratios: Sequence[Lengths],
    finest: Sequence[float] | None,
    shapes: Sequence[Sequence[float] | None],
) -> list[Lengths]:
    """Return ratios of the voxel sizes of levels to those of the finest one, with each ratio of two
    shapes replaced by the power of two behind it; shapes are None if they are not known.

    Software that derives voxel sizes from shapes states 25 / 12 where 25 voxels became 12. Whole
    ratios are kept if a level has one that no rounding explains: 9 is no rounded 8 beside a 3.

    Examples
    --------
    >>> factors_by_shapes(
    ...     [(25 / 12, 2, 3), (25 / 3, 8, 10)], (25, 24, 30), [(12, 12, 10), (3, 3, 3)]
    ... )
    [(2.0, 2, 3), (8.0, 8, 10)]
    """
    found = [
        _factors_by_shape(ratio, finest, size) for ratio, size in zip(ratios, shapes, strict=True)
    ]
    if any(_is_other_factor(factor) for ratio in found for factor in ratio):
        return [_whole_as_stated(*each) for each in zip(ratios, found, strict=True)]
    return found


def _factors_by_shape(
    ratio: Lengths, finer: Sequence[float] | None, coarser: Sequence[float] | None
) -> Lengths:
    if finer is None or coarser is None:
        return ratio
    x, y, z = (_factor_by_length(*each) for each in zip(ratio, finer, coarser, strict=True))
    return x, y, z


def _whole_as_stated(stated: Lengths, found: Lengths) -> Lengths:
    x, y, z = (a if _is_whole(a) else b for a, b in zip(stated, found, strict=True))
    return x, y, z


def _is_whole(ratio: float) -> bool:
    return math.isfinite(ratio) and abs(ratio - round(ratio)) <= _ROUNDING * ratio


def _is_other_factor(ratio: float) -> bool:
    return _is_whole(ratio) and mag_from_ratio((ratio, 1.0, 1.0)) is None


def _factor_by_length(ratio: float, finer: float, coarser: float) -> float:
    is_derived = (
        coarser > 0 and abs(ratio * coarser / finer - 1) < _ROUNDING if finer > 0 else False
    )
    if not is_derived or mag_from_ratio((ratio, 1.0, 1.0)) is not None:
        return ratio
    powers = [2.0**n for n in range(math.floor(math.log2(finer)) + 2)]
    # most software rounds lengths down
    found = [power for power in powers if finer // power == coarser] or [
        power for power in powers if -(-finer // power) == coarser
    ]
    return found[0] if found else ratio


def base_level(sizes: Sequence[Lengths | None], are_readable: Sequence[bool]) -> int:
    """Return the index of the level from which mags count: the finest one that an image lists,
    readable or not.

    An unreadable level whose voxels do not divide those of the finest readable level does not
    count.
    """
    order = finest_first(sizes)
    readable = next((sizes[n] for n in order if are_readable[n]), None)
    for n in order:
        size = sizes[n]
        if (
            are_readable[n]
            or size is None
            or readable is None
            or mag_from_ratio(ratio_of(readable, size)) is not None
        ):
            return n
    return order[0]


def offset_from_center(
    center: Sequence[float], base: Sequence[float], ratio: Sequence[float]
) -> Vec3:
    """Return the first voxel [voxels of the mag] of an array, given the center of that voxel.

    Notes
    -----
    Some software states the center of the first voxel, some its corner, some nothing: all of these
    are closest to the same voxel.

    Examples
    --------
    >>> (
    ...     offset_from_center((6, 38, 6), (4, 4, 4), (4, 4, 4)),
    ...     offset_from_center((0, 32, 0), (4, 4, 4), (4, 4, 4)),
    ... )
    ((0, 2, 0), (0, 2, 0))
    """
    voxels = [
        (place / unit - (factor - 1) / 2) / factor
        for place, unit, factor in zip(center, base, ratio, strict=True)
    ]
    if not all(abs(voxel) <= _MAX_OFFSET for voxel in voxels):  # also true for NaN
        return 0, 0, 0
    return vec3([math.floor(voxel + _HALF) for voxel in voxels])
