"""Morton codes: the order of the blocks in a WKW file.

Bit ``3 * i`` of a code is bit ``i`` of x, bit ``3 * i + 1`` that of y and bit ``3 * i + 2`` that of
z (webknossos-wrap README, "High-level description").
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from wkwdask.array_types import IntArray, UintArray
    from wkwdask.geometry.mag import Vec3

MAX_BITS = 21  # of one coordinate: a code of 64 bits holds three coordinates


def _spread(values: UintArray) -> UintArray:
    """Move bit ``i`` of each value to bit ``3 * i``."""
    out = np.zeros_like(values)
    for bit in range(MAX_BITS):
        out |= (values >> np.uint64(bit) & np.uint64(1)) << np.uint64(3 * bit)
    return out


# Coordinates inside a file are nearly always below 1024. Looking them up in a table is far faster
# than the loop over bits.
_TABLE_BITS = 10
_TABLE = _spread(np.arange(1 << _TABLE_BITS, dtype=np.uint64))


def encode(coordinates: npt.ArrayLike) -> UintArray:
    """Return the Morton codes of block coordinates, shape (n, 3).

    Examples
    --------
    >>> encode([(29, 20, 3), (23, 20, 3)]).tolist()
    [13029, 12525]
    """
    array = np.asarray(coordinates, dtype=np.int64).reshape(-1, 3)
    if array.size and (array.min() < 0 or array.max() >> MAX_BITS):
        raise ValueError(f"morton coordinates must lie in 0..2**{MAX_BITS} - 1")
    if array.size and array.max() >> _TABLE_BITS:
        x, y, z = (_spread(array[:, axis].astype(np.uint64)) for axis in range(3))
    else:
        x, y, z = (_TABLE[array[:, axis]] for axis in range(3))
    codes: UintArray = x | y << np.uint64(1) | z << np.uint64(2)
    return codes


def decode(codes: npt.ArrayLike) -> IntArray:
    """Return the block coordinates of Morton codes, shape (n, 3).

    Examples
    --------
    >>> decode([0, 1, 2, 3, 4, 13]).tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [3, 0, 1]]
    """
    array = np.asarray(codes, dtype=np.uint64).reshape(-1)
    out = np.zeros((array.size, 3), np.uint64)
    for bit in range(min(MAX_BITS, -(-int(array.max(initial=0)).bit_length() // 3))):
        for axis in range(3):
            out[:, axis] |= (array >> np.uint64(3 * bit + axis) & np.uint64(1)) << np.uint64(bit)
    return out.astype(np.int64)


def ordered_box(low: Vec3, high: Vec3) -> tuple[UintArray, IntArray]:
    """Return the codes and coordinates of the cells of a box in Morton order; both arrays are
    read-only.

    Examples
    --------
    >>> codes, coordinates = ordered_box((1, 0, 0), (3, 2, 1))
    >>> codes.tolist(), coordinates[:, :2].tolist()
    ([1, 3, 8, 10], [[1, 0], [1, 1], [2, 0], [2, 1]])
    """
    edge = high[0] - low[0]
    is_cube = edge == high[1] - low[1] == high[2] - low[2]
    if not is_cube or edge <= 0 or edge & (edge - 1) or not any(low) or any(a % edge for a in low):
        return _ordered_box(low, high)
    # The codes of an aligned cube with a power of two as edge are contiguous: those of the cube at
    # the origin (cached) plus the code of its corner.
    codes, coordinates = _ordered_box((0, 0, 0), (edge, edge, edge))
    codes, coordinates = codes + encode(low)[0], coordinates + low
    codes.flags.writeable = coordinates.flags.writeable = False
    return codes, coordinates


@lru_cache(maxsize=16)
def _ordered_box(low: Vec3, high: Vec3) -> tuple[UintArray, IntArray]:
    axes = np.meshgrid(*(np.arange(a, b) for a, b in zip(low, high, strict=True)), indexing="ij")
    coordinates = np.stack([axis.ravel() for axis in axes], axis=1)
    codes = encode(coordinates)
    order = np.argsort(codes)
    codes, coordinates = codes[order], coordinates[order]
    codes.flags.writeable = coordinates.flags.writeable = False
    return codes, coordinates
