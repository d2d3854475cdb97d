"""How the chunks of a Zarr array are put into shards, or into groups of files that one task writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.mag import Vec3

SHARD_NBYTES = 512 << 20
GROUP_NBYTES = 64 << 20
GROUP_CHUNKS = 1024


def shard_cells(size: Sequence[int], chunk_shape: Vec3, voxel_nbytes: int, *, is_sharded: bool) -> Vec3:
    """Choose how many chunks are stored or written together.

    Examples
    --------
    >>> shard_cells((5000, 5000, 100), (64, 64, 64), 1, is_sharded=True)
    (32, 32, 2)
    """
    most = SHARD_NBYTES if is_sharded else GROUP_NBYTES
    cells = [1, 1, 1]
    nbytes = chunk_shape[0] * chunk_shape[1] * chunk_shape[2] * voxel_nbytes
    while 2 * nbytes <= most and (is_sharded or cells[0] * cells[1] * cells[2] < GROUP_CHUNKS):
        axes = [axis for axis in range(3) if cells[axis] * chunk_shape[axis] < size[axis]]
        if not axes:
            break
        shortest = min(axes, key=lambda n: (cells[n] * chunk_shape[n], -n))
        cells[shortest], nbytes = cells[shortest] * 2, nbytes * 2
    return cells[0], cells[1], cells[2]


def given_cells(shard_shape: Vec3, chunk_shape: Vec3) -> Vec3:
    """Give the chunks of a shard that a user asks for."""
    cells = [shard // chunk for shard, chunk in zip(shard_shape, chunk_shape, strict=True)]
    if any(shard % chunk or count & (count - 1) or not count for shard, chunk, count in zip(shard_shape, chunk_shape, cells, strict=True)):
        raise ValueError(f"a shard must be a power of two of chunks along each axis, got a shard of {shard_shape} voxels for chunks of {chunk_shape}")
    return cells[0], cells[1], cells[2]
