"""Sizes of dask chunks, of shards and files, and of the parts of a file that are encoded at
once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_range, piece_lengths
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import divide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3


SHARD_NBYTES = 512 << 20
BUCKET_SHARD_NBYTES = 256 << 20
"""Size of a shard in a bucket, which one put stores from memory."""


def default_chunks_per_shard(
    size: Sequence[int], chunk_shape: Vec3, voxel_nbytes: int, shard_nbytes: int | None
) -> Vec3:
    """Choose the number of chunks along x, y, z in a shard of at most ``shard_nbytes`` before
    compression or, if it is None, in a group of files that one task writes.

    Examples
    --------
    >>> default_chunks_per_shard((5000, 5000, 100), (64, 64, 64), 1, SHARD_NBYTES)
    (32, 32, 2)
    """
    most = _GROUP_NBYTES if shard_nbytes is None else shard_nbytes
    cells = [1, 1, 1]
    nbytes = chunk_shape[0] * chunk_shape[1] * chunk_shape[2] * voxel_nbytes
    while 2 * nbytes <= most and (
        shard_nbytes is not None or cells[0] * cells[1] * cells[2] < _GROUP_CHUNKS
    ):
        axes = [axis for axis in range(3) if cells[axis] * chunk_shape[axis] < size[axis]]
        if not axes:
            break
        shortest = min(axes, key=lambda n: (cells[n] * chunk_shape[n], n))
        cells[shortest], nbytes = cells[shortest] * 2, nbytes * 2
    return vec3(cells)


def chunks_per_shard(shard_shape: Vec3, chunk_shape: Vec3) -> Vec3:
    """Return the number of chunks along x, y, z in a shard of the requested shape; raise ValueError
    unless they are whole numbers.

    Examples
    --------
    >>> chunks_per_shard((90, 90, 20), (30, 30, 20))
    (3, 3, 1)
    """
    for axis, shard, chunk in zip("xyz", shard_shape, chunk_shape, strict=True):
        if shard % chunk:
            nearest = [n * chunk for n in (shard // chunk, shard // chunk + 1) if n]
            raise ValueError(
                f"a shard must be whole chunks along each axis, got a shard of {shard_shape} "
                f"voxels for chunks of {chunk_shape}: give {' or '.join(map(str, nearest))} voxels "
                f"along {axis}"
            )
    return divide(shard_shape, chunk_shape)


@dataclass(frozen=True, slots=True)
class PartPlan:
    """Parts in which an array is encoded."""

    part_shape: Vec3
    """Shape of a part [voxels]: whole chunks of the target, inside one shard."""
    touched_nbytes: int
    """Largest size of the chunks of the array that one part touches [bytes]."""


def plan_parts(
    lengths: Sequence[Sequence[int]],
    box: BoundingBox,
    chunk_shape: Vec3,
    shard_shape: Vec3,
    voxel_nbytes: int,
    part_nbytes: int,
) -> PartPlan:
    """Choose large parts that touch few chunks of the array.

    All chunks that a part touches are in memory at once. So the shape of a part follows the shapes
    of the chunks::

        chunks of an array: sections of 1 voxel       part: one layer of blocks, as wide as a file
        z  ===========================                +---------+---------+
           ===========================                | part    | part    |   32 sections are in memory,
           ===========================                +---------+---------+   each of them is read once

    Examples
    --------

    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> box = BoundingBox((0, 0, 0), (2048, 2048, 512))
    >>> plan_parts([[2048], [2048], [1] * 512], box, (32,) * 3, (1024,) * 3, 1, 128 << 20)
    PartPlan(part_shape=(1024, 1024, 32), touched_nbytes=134217728)
    """  # noqa: E501
    edges = [np.cumsum([low, *axis]) for low, axis in zip(box.topleft, lengths, strict=True)]

    def touched(shape: Vec3) -> int:
        return (
            math.prod(_touched_length(axis, step) for axis, step in zip(edges, shape, strict=True))
            * voxel_nbytes
        )

    shape, nbytes = chunk_shape, touched(chunk_shape)
    while True:
        grown = [
            (touched(larger), max(larger), larger) for larger in _enlargements(shape, shard_shape)
        ]
        fitting = [
            (total, edge, larger)
            for total, edge, larger in grown
            if math.prod(larger) * voxel_nbytes <= part_nbytes and total <= max(nbytes, part_nbytes)
        ]
        if not fitting:
            return PartPlan(shape, nbytes)
        nbytes, _, shape = min(fitting)


def _enlargements(shape: Vec3, limit: Vec3) -> list[Vec3]:
    """List the shapes with one axis enlarged, by the smallest factor, that divide ``limit``."""
    (x, y, z), (a, b, c) = shape, map(_smallest_factor, shape, limit)
    choices = [(a * x, y, z), (x, b * y, z), (x, y, c * z)]
    return [choice for choice in choices if choice != shape]


def _smallest_factor(length: int, limit: int) -> int:
    """Return the smallest factor above 1 that makes a length another divisor of a limit, 1 if there
    is none."""
    factor = 1 if limit % length else limit // length
    return next((n for n in range(2, math.isqrt(factor) + 1) if factor % n == 0), factor)


def _touched_length(edges: np.ndarray[tuple[int], np.dtype[np.int64]], step: int) -> int:
    """Return the largest total length of the chunks that one cell of ``step`` voxels touches;
    ``edges`` are the borders of chunks along the axis."""
    low, high = int(edges[0]), int(edges[-1])
    if high <= low:
        return 0
    starts = np.arange(low // step * step, high, step)
    first = np.searchsorted(edges, np.maximum(starts, low), side="right") - 1
    last = np.searchsorted(edges, np.minimum(starts + step, high), side="left")
    return int((edges[last] - edges[first]).max())


MANY_CHUNKS = 200_000
_GROUP_NBYTES = 64 << 20
_GROUP_CHUNKS = 1024


def largest_multiple(chunk_shape: Vec3, shard_shape: Vec3, voxel_nbytes: int, nbytes: int) -> Vec3:
    """Return the largest shape of at most ``nbytes`` bytes on the grids of chunks and shards.

    Examples
    --------
    >>> largest_multiple((32, 32, 32), (1024, 1024, 1024), 1, 128 << 20)
    (512, 512, 512)
    >>> largest_multiple((32, 32, 32), (96, 128, 128), 1, 128 << 20)
    (96, 128, 128)
    """
    shape = chunk_shape
    while True:
        factors = list(map(_smallest_factor, shape, shard_shape))
        least = min((factor for factor in factors if factor > 1), default=1)
        x, y, z = (
            n * factor if factor == least else n for n, factor in zip(shape, factors, strict=True)
        )
        if (x, y, z) == shape or x * y * z * voxel_nbytes > nbytes:
            return shape
        shape = x, y, z


def chunk_group_shape(grid: Vec3, chunk_nbytes: int) -> Vec3:
    """Return the number of chunks along x, y, z that one task reads or writes if each chunk is a
    separate file."""
    cells, nbytes = [1, 1, 1], chunk_nbytes
    axes = [axis for axis in range(3) if cells[axis] < grid[axis]]
    while axes and nbytes * 2 <= _GROUP_NBYTES and cells[0] * cells[1] * cells[2] < _GROUP_CHUNKS:
        axis = min(axes, key=lambda n: cells[n])
        cells[axis], nbytes = cells[axis] * 2, nbytes * 2
        axes = [axis for axis in axes if cells[axis] < grid[axis]]
    return vec3(cells)


def chunk_lengths(
    extent: BoundingBox, box: BoundingBox, shape: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the chunk lengths of an array along x, y, z with all inner borders on the grid of
    ``shape``.

    An array that starts before the box of its data gets an additional first chunk, up to the last
    border before the box. It contains no data and is not read.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> box = BoundingBox((2679, 0, 40), (256, 64, 10))
    >>> chunk_lengths(box, box, (128, 128, 128))
    ((9, 128, 119), (64,), (10,))
    >>> chunk_lengths(BoundingBox((0, 0, 0), box.bottomright), box, (128, 128, 128))
    ((2560, 128, 128, 119), (64,), (50,))
    """
    lengths = []
    for first, last, low, step in zip(
        extent.topleft, extent.bottomright, box.topleft, shape, strict=True
    ):
        before = min(max(low // step * step - first, 0), last - first)
        inside = piece_lengths(first + before, last, step)
        lengths.append((before, *inside) if before else inside)
    return tuple(lengths)


def num_chunks(lengths: Sequence[Sequence[int]]) -> int:
    """Count the chunks of an array."""
    return math.prod(map(len, lengths))


LARGEST_FILE_LEN = 32
_NBYTES_PER_FILE = 4096  # header, inode, and on average half a disk block at the end
_NBYTES_PER_TABLE_ENTRY = 8
# fractions 1/n of the voxel bytes of the box: an absent raw block takes 255 times as much as a
# compressed one
_MARGIN, _MARGIN_OF_RAW = 128, 8


def suitable_file_len(
    box: BoundingBox,
    block_len: int,
    voxel_nbytes: int,
    *,
    is_compressed: bool,
    largest: int = LARGEST_FILE_LEN,
) -> int:
    """Choose the edge length of the files of a mag [blocks].

    A small box is stored in about the fewest bytes, and a large box in few files.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> [
    ...     suitable_file_len(BoundingBox((0, 0, 0), (edge,) * 3), 32, 1, is_compressed=True)
    ...     for edge in (32, 64, 200, 1100, 5000)
    ... ]
    [1, 2, 8, 16, 32]
    >>> suitable_file_len(BoundingBox((0, 0, 0), (1100, 1100, 1100)), 32, 1, is_compressed=False)
    4
    """
    if box.is_empty:
        return 1
    # A file stores all of its blocks, including those outside the box. A compressed block of zeros
    # takes 1/255 of its voxels and an entry of the jump table, a raw one as much as any block. Each
    # file takes another 4 KiB. The largest length is chosen whose bytes exceed the minimum by at
    # most a margin.
    block_nbytes = block_len**3 * voxel_nbytes
    absent_nbytes = block_nbytes // 255 + _NBYTES_PER_TABLE_ENTRY if is_compressed else block_nbytes
    lengths = [1 << n for n in range(largest.bit_length())]
    files = [
        math.prod(len(cells) for cells in cell_range(box, (block_len * length,) * 3))
        for length in lengths
    ]
    spent = [
        count * (_NBYTES_PER_FILE + length**3 * absent_nbytes)
        for count, length in zip(files, lengths, strict=True)
    ]
    most = min(spent) + box.volume * voxel_nbytes // (_MARGIN if is_compressed else _MARGIN_OF_RAW)
    return max(length for length, nbytes in zip(lengths, spent, strict=True) if nbytes <= most)
