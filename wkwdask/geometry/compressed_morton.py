"""Compressed Morton codes: the chunk identifiers of sharded Neuroglancer precomputed volumes.

Bits that are zero in all cells of a grid are omitted, so that codes of long thin volumes fit into
64 bits (neuroglancer, ``precomputed/volume.rst``, "Compressed morton code"). Compressed and plain
Morton codes sort cells in the same order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.array_types import IntArray, UintArray
    from wkwdask.geometry.mag import Vec3

MAX_BITS = 64  # of a code: chunk identifiers are uint64


@lru_cache(maxsize=64)
def bit_axes(grid: Vec3) -> tuple[int, ...]:
    """Return the axis (0, 1, 2) that each bit of a code belongs to, lowest bit first.

    Examples
    --------
    >>> bit_axes((4, 2, 1))
    (0, 1, 0)
    """
    if min(grid) < 1:
        raise ValueError(
            f"a grid of chunks must have at least one cell along each axis, got {grid}"
        )
    # Bit i of an axis takes part only if some cell has it set: a grid of 5 cells along x has 3 bits
    # of x.
    #     grid (4, 2, 1):  x has bits 0, 1; y has bit 0; z has none   ->   code = x1 y0 x0
    lengths = [(cells - 1).bit_length() for cells in grid]
    if sum(lengths) > MAX_BITS:
        raise ValueError(
            f"a grid of {grid} chunks needs chunk identifiers of {sum(lengths)} bits, more than "
            f"{MAX_BITS}: choose larger chunks"
        )
    return tuple(
        axis for bit in range(max(lengths, default=0)) for axis in range(3) if bit < lengths[axis]
    )


def encode(coordinates: npt.ArrayLike, grid: Vec3) -> UintArray:
    """Return the codes of cells, shape (n, 3).

    Examples
    --------
    >>> encode([(0, 0, 0), (1, 0, 0), (0, 1, 0), (2, 1, 0)], (3, 2, 1)).tolist()
    [0, 1, 2, 6]
    """
    array = np.asarray(coordinates, np.int64).reshape(-1, 3)
    if array.size and (array.min() < 0 or (array >= np.asarray(grid)).any()):
        raise ValueError(f"a cell lies outside the grid of {grid} chunks")
    columns = array.astype(np.uint64).T
    codes = np.zeros(len(array), np.uint64)
    bits_used = [0, 0, 0]
    for bit, axis in enumerate(bit_axes(grid)):
        codes |= (columns[axis] >> np.uint64(bits_used[axis]) & np.uint64(1)) << np.uint64(bit)
        bits_used[axis] += 1
    return codes


def code_of(cell: Vec3, grid: Vec3) -> int:
    """Return the code of one cell of a grid.

    Examples
    --------
    >>> code_of((2, 1, 0), (3, 2, 1))
    6
    """
    rest, code = list(cell), 0
    for bit, axis in enumerate(bit_axes(grid)):
        code |= (rest[axis] & 1) << bit
        rest[axis] >>= 1
    return code


def decode(codes: npt.ArrayLike, grid: Vec3) -> IntArray:
    """Return the cells of codes, shape (n, 3).

    Examples
    --------
    >>> decode([6], (3, 2, 1)).tolist()
    [[2, 1, 0]]
    """
    array = np.asarray(codes, np.uint64).reshape(-1)
    out = np.zeros((array.size, 3), np.uint64)
    bits_used = [0, 0, 0]
    for bit, axis in enumerate(bit_axes(grid)):
        out[:, axis] |= (array >> np.uint64(bit) & np.uint64(1)) << np.uint64(bits_used[axis])
        bits_used[axis] += 1
    return out.astype(np.int64)


def cells_per_axis(bits: int, grid: Vec3) -> Vec3:
    """Return the shape [cells] of the box of cells that share all but the lowest ``bits`` bits of
    their codes.

    Examples
    --------
    >>> cells_per_axis(3, (16, 16, 1))
    (4, 2, 1)
    """
    axes: Sequence[int] = bit_axes(grid)[:bits]
    return 1 << axes.count(0), 1 << axes.count(1), 1 << axes.count(2)
