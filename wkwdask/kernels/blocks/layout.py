"""Memory layout of blocks, arrays and block tables, shared by the compiled and the Python loops.

A block stores its voxels as WKW does (webknossos-wrap README, "Raw blocks"): the channel is the
fastest axis, then x, y, z. Arrays have the shape (c, x, y, z) and any memory order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray, IntArray

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Unsigned type of each item size. Kernels move voxels as bits, so each loop is compiled for four
types instead of ten."""

RAW, LZ4, LZ4HC = 1, 2, 3
"""Block types of the WKW header (webknossos-wrap README, "Header fields")."""

OUTSIDE = -(1 << 40)
"""Decoded length reported for a block outside the memory that was read. Results of LZ4 have 32
bits, so they never equal it."""

# Columns of a block table, which ``locate`` fills and ``batch`` decodes.
CODE, OFFSET, SIZE, START, X, Y, Z = range(7)
"""Morton code; first byte in the file; stored length [bytes]; first byte in the memory of its
batch; lowest voxel relative to the array, along x, y, z."""

_Slices = tuple[slice, slice, slice]


def cubes_table(
    corner: Sequence[int],
    edge: int,
    low: Sequence[int] = (0, 0, 0),
    high: Sequence[int] = (1, 1, 1),
) -> IntArray:
    """Return a block table without stored bytes: some cubes of a grid that starts at ``corner``, by
    default the first one."""
    cubes = np.indices([b - a for a, b in zip(low, high, strict=True)]).reshape(3, -1).T
    table = np.zeros((len(cubes), Z + 1), np.int64)
    table[:, X : Z + 1] = (cubes + low) * edge + corner
    return table


def overlap(corner: Sequence[int], edge: int, shape: Sequence[int]) -> tuple[_Slices, _Slices]:
    """Return the overlap of an array (c, x, y, z) and a cube at ``corner``: its slices in the
    array, and its slices in the cube."""
    # One axis, with two cubes that cross the ends of the array. low and high are counted from the
    # corner of the cube:
    #
    #              0           n
    #   array      |===========|
    #   cube    [--######]  [####----]
    #              low  high  low high
    low = [max(0, -first) for first in corner]
    high = [
        max(a, min(edge, n - first)) for a, first, n in zip(low, corner, shape[1:], strict=True)
    ]
    in_array = [slice(first + a, first + b) for first, a, b in zip(corner, low, high, strict=True)]
    in_block = [slice(a, b) for a, b in zip(low, high, strict=True)]
    return (in_array[0], in_array[1], in_array[2]), (in_block[0], in_block[1], in_block[2])


def flat_memory(array: AnyArray) -> tuple[AnyArray, tuple[int, ...]]:
    """View the memory of an array from its first element to its last as unsigned integers, and
    return it with the strides in elements."""
    itemsize = array.itemsize
    if array.flags.forc and array.size > 1:
        # the common case of small reads, and cheaper than the general one
        return array.ravel("K").view(UNSIGNED[itemsize]), tuple(
            [stride // itemsize for stride in array.strides]
        )
    strides = tuple(
        0 if n == 1 else stride // itemsize
        for n, stride in zip(array.shape, array.strides, strict=True)
    )
    span = 1 + sum((n - 1) * stride for n, stride in zip(array.shape, strides, strict=True))
    flat = np.lib.stride_tricks.as_strided(array.view(UNSIGNED[itemsize]), (span,), (itemsize,))
    return flat, strides


def is_plain(array: AnyArray) -> bool:
    """Return whether :func:`flat_memory` accepts the array."""
    return array.dtype.isnative and (
        array.flags.forc
        or all(
            n == 1 or (stride > 0 and stride % array.itemsize == 0)
            for n, stride in zip(array.shape, array.strides, strict=True)
        )
    )
