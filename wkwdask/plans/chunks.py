"""How an array over a volume is cut into dask chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.geometry.grid import borders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

MANY_CHUNKS = 200_000
_GROUP_NBYTES = 64 << 20
_GROUP_CHUNKS = 1024


def largest_multiple(chunk_shape: Vec3, shard_shape: Vec3, voxel_nbytes: int, nbytes: int) -> Vec3:
    """Find the largest box for a number of bytes that stays on the grids of chunks and shards.

    Examples
    --------
    >>> largest_multiple((32, 32, 32), (1024, 1024, 1024), 1, 128 << 20)
    (512, 512, 512)
    """
    shape = chunk_shape
    while shape != shard_shape:
        doubled = [n * 2 if shard % (n * 2) == 0 else n for n, shard in zip(shape, shard_shape, strict=True)]
        grown = (doubled[0], doubled[1], doubled[2])
        if grown == shape or grown[0] * grown[1] * grown[2] * voxel_nbytes > nbytes:
            break
        shape = grown
    return shape


def group_of_chunks(grid: Vec3, chunk_nbytes: int) -> Vec3:
    """Say how many chunks that are files of their own are best handled together."""
    cells, nbytes = [1, 1, 1], chunk_nbytes
    axes = [axis for axis in range(3) if cells[axis] < grid[axis]]
    while axes and nbytes * 2 <= _GROUP_NBYTES and cells[0] * cells[1] * cells[2] < _GROUP_CHUNKS:
        axis = min(axes, key=lambda n: cells[n])
        cells[axis], nbytes = cells[axis] * 2, nbytes * 2
        axes = [axis for axis in axes if cells[axis] < grid[axis]]
    return cells[0], cells[1], cells[2]


def chunk_lengths(start: Sequence[int], box: BoundingBox, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Cut an array along x, y, z so that all inner borders lie on the grid of a chunk shape.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> box = BoundingBox((2679, 0, 40), (256, 64, 10))
    >>> chunk_lengths(box.topleft, box, (128, 128, 128))
    ((9, 128, 119), (64,), (10,))
    >>> chunk_lengths((0, 0, 0), box, (128, 128, 128))
    ((2560, 128, 128, 119), (64,), (50,))
    """
    lengths = []
    for first, low, high, step in zip(start, box.topleft, box.bottomright, shape, strict=True):
        before = max(low // step * step - first, 0)
        inside = borders(first + before, high, step)
        lengths.append((before, *inside) if before else inside)
    return tuple(lengths)


def num_chunks(lengths: Sequence[Sequence[int]]) -> int:
    """Count the chunks of an array."""
    count = 1
    for axis in lengths:
        count *= len(axis)
    return count
