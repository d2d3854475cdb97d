"""Compressed Morton codes: the chunk identifiers of sharded Neuroglancer precomputed volumes.

Bits that are zero in all cells of a grid are left out, so that codes of long thin volumes fit 64 bits
(neuroglancer, ``precomputed/volume.rst``, "Compressed morton code"). The order of the cells is that of their plain Morton codes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3

MAX_BITS = 64
"""Bits of a code."""


@lru_cache(maxsize=64)
def bit_axes(grid: Vec3) -> tuple[int, ...]:
    """Say of which axis each bit of a code is, the lowest first.

    Examples
    --------
    >>> bit_axes((4, 2, 1))
    (0, 1, 0)
    """
    if min(grid) < 1:
        raise ValueError(f"a grid of chunks has at least one cell along each axis, got {grid}")
    lengths = [(cells - 1).bit_length() for cells in grid]
    if sum(lengths) > MAX_BITS:
        raise ValueError(f"a grid of {grid} chunks needs chunk identifiers of {sum(lengths)} bits, more than {MAX_BITS}: choose larger chunks")
    return tuple(axis for bit in range(max(lengths, default=0)) for axis in range(3) if bit < lengths[axis])


def encode(coordinates: npt.ArrayLike, grid: Vec3) -> npt.NDArray[np.uint64]:
    """Compute the codes of cells.

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
    taken = [0, 0, 0]
    for place, axis in enumerate(bit_axes(grid)):
        codes |= (columns[axis] >> np.uint64(taken[axis]) & np.uint64(1)) << np.uint64(place)
        taken[axis] += 1
    return codes


def decode(codes: npt.ArrayLike, grid: Vec3) -> npt.NDArray[np.int64]:
    """Compute the cells of codes.

    Examples
    --------
    >>> decode([6], (3, 2, 1)).tolist()
    [[2, 1, 0]]
    """
    array = np.asarray(codes, np.uint64).reshape(-1)
    out = np.zeros((array.size, 3), np.uint64)
    taken = [0, 0, 0]
    for place, axis in enumerate(bit_axes(grid)):
        out[:, axis] |= (array >> np.uint64(place) & np.uint64(1)) << np.uint64(taken[axis])
        taken[axis] += 1
    return out.astype(np.int64)


def cells_per_axis(bits: int, grid: Vec3) -> Vec3:
    """Say how many cells along each axis the lowest bits of a code tell apart: the box of cells that share all higher bits.

    Examples
    --------
    >>> cells_per_axis(3, (16, 16, 1))
    (4, 2, 1)
    """
    axes: Sequence[int] = bit_axes(grid)[:bits]
    return 1 << axes.count(0), 1 << axes.count(1), 1 << axes.count(2)
