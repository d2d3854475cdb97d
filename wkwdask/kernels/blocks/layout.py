"""How a block lies in an array, and how an array (c, x, y, z) lies in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Blocks are moved as bits, so that four types serve all voxel types."""

# The columns of a block table, the form in which blocks travel from ``locate`` to ``blocks``.
CODE, OFFSET, SIZE, START, X, Y, Z = range(7)
"""Morton code; first byte in the file; stored length [bytes]; first byte in the memory of its batch; lowest voxel relative to the array."""

_Slices = tuple[slice, slice, slice]


def cube_table(corner: Sequence[int]) -> npt.NDArray[np.int64]:
    """Make a table of one cube with nothing stored for it."""
    table = np.zeros((1, Z + 1), np.int64)
    table[0, X : Z + 1] = corner
    return table


def overlap(corner: Sequence[int], edge: int, shape: Sequence[int]) -> tuple[_Slices, _Slices]:
    """Give the slices of the array (c, x, y, z) and of the block in which both lie."""
    low = [max(0, -at) for at in corner]
    high = [max(a, min(edge, n - at)) for a, at, n in zip(low, corner, shape[1:], strict=True)]
    in_array = [slice(at + a, at + b) for at, a, b in zip(corner, low, high, strict=True)]
    in_block = [slice(a, b) for a, b in zip(low, high, strict=True)]
    return (in_array[0], in_array[1], in_array[2]), (in_block[0], in_block[1], in_block[2])


def flat_memory(array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """View the memory of an array from its first element to its last, as unsigned integers."""
    itemsize = array.itemsize
    if array.flags.forc and array.size > 1:  # cheaper than the general case, and what small reads nearly always bring
        flat = array.ravel("K").view(UNSIGNED[itemsize])
        return flat, tuple(0 if n == 1 else stride // itemsize for n, stride in zip(array.shape, array.strides, strict=True))
    strides = tuple(0 if n == 1 else stride // itemsize for n, stride in zip(array.shape, array.strides, strict=True))
    span = 1 + sum((n - 1) * stride for n, stride in zip(array.shape, strides, strict=True))
    flat = np.lib.stride_tricks.as_strided(array.view(UNSIGNED[itemsize]), (span,), (itemsize,))
    return flat, strides


def is_plain(array: npt.NDArray[Any]) -> bool:
    """Tell whether :func:`flat_memory` can view the array."""
    return array.dtype.isnative and all(n == 1 or (stride > 0 and stride % array.itemsize == 0) for n, stride in zip(array.shape, array.strides, strict=True))
