"""Choosing how the chunks of a volume are put into shard files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.precomputed import images
from wkwdask.formats.precomputed.sharding import Sharding
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import ceil_divide, times
from wkwdask.plans.chunks import given_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.geometry.mag import Vec3

TARGET_SHARD_NBYTES = 1 << 30
_MINISHARD_BITS = 9  # a viewer reads the index of a whole minishard for its first chunk: 512 entries have 12 KiB
_INDEX_BITS = 10  # a shard index of at most 16 KiB, which other readers read whole


def choose_sharding(
    size: Sequence[int],
    chunk_size: Sequence[int],
    dtype: Any = "uint8",
    *,
    num_channels: int = 1,
    encoding: str = "raw",
    target_shard_nbytes: int = TARGET_SHARD_NBYTES,
) -> Sharding:
    """Choose the sharding of a Neuroglancer precomputed volume, for a volume of any size.

    Shards are boxes of voxels, so that each can be written by one task: chunk identifiers are not hashed, and the bits cover all of them exactly. A shard
    holds as many chunks as fit the target before they are compressed, and at least one. A minishard holds at most 512 chunks, unless the index of a shard
    would have more than 1024 minishards.

    Parameters
    ----------
    size : sequence of 3 int
        Voxels of the scale along x, y, z.
    chunk_size : sequence of 3 int
        Voxels of a chunk along x, y, z.
    dtype : dtype_like
        Type of one channel.
    num_channels : int
        Values per voxel.
    encoding : str
        Encoding of the chunks: those of images are not compressed again, all others are stored as gzip streams.
    target_shard_nbytes : int
        The largest shard [bytes, before compression].

    Returns
    -------
    Sharding
        Its :meth:`Sharding.shard_cells` says how many chunks along x, y, z one shard file holds.

    Raises
    ------
    ValueError
        Sizes are not positive, or the volume has so many chunks that their identifiers need more than 64 bits.

    Examples
    --------
    >>> choose_sharding((34432, 39552, 51508), (64, 64, 64))
    Sharding(preshift_bits=9, minishard_bits=3, shard_bits=18, hash='identity', minishard_index_encoding='gzip', data_encoding='gzip')
    >>> sharding = choose_sharding((2000, 2000, 100), (64, 64, 64), "uint64", encoding="compressed_segmentation")
    >>> sharding.shard_cells((32, 32, 2))
    (16, 16, 2)
    """
    shape, chunk = vec3(size, "size"), vec3(chunk_size, "chunk_size")
    if min(shape) < 1 or min(chunk) < 1 or num_channels < 1 or target_shard_nbytes < 1:
        raise ValueError(
            f"size, chunk_size, num_channels and target_shard_nbytes must be positive, got {shape}, {chunk}, {num_channels}, {target_shard_nbytes}"
        )
    chunk_nbytes = chunk[0] * chunk[1] * chunk[2] * num_channels * np.dtype(dtype).itemsize
    return _sharding(ceil_divide(shape, chunk), max(1, target_shard_nbytes // chunk_nbytes).bit_length() - 1, encoding)


def sharding_of_shape(shape: Vec3, scale: Scale) -> Sharding:
    """Choose the sharding whose shards have a shape [voxels], or hold the whole scale along the axes where it is shorter."""
    grid = scale.grid
    x, y, z = (min(cells, 1 << (most - 1).bit_length()) for cells, most in zip(given_cells(shape, scale.chunk_size), grid, strict=True))
    possible = [compressed_morton.cells_per_axis(bits, grid) for bits in range(len(compressed_morton.bit_axes(grid)) + 1)]
    if (x, y, z) not in possible:
        shapes = ", ".join("x".join(map(str, times(cells, scale.chunk_size))) for cells in possible)
        raise ValueError(f"a shard of {shape} voxels is no range of chunk identifiers of scale {scale.key!r}; its shards can have {shapes} voxels")
    return _sharding(grid, possible.index((x, y, z)), scale.encoding)


def _sharding(grid: Vec3, bits: int, encoding: str) -> Sharding:
    """Make a sharding whose shards hold as many chunks as so many bits tell apart; gzip does not make images smaller."""
    total = len(compressed_morton.bit_axes(grid))
    within = min(total, bits)
    preshift = max(min(within, _MINISHARD_BITS), within - _INDEX_BITS)
    data_encoding = "raw" if encoding in images.ENCODINGS else "gzip"
    return Sharding(preshift, within - preshift, total - within, minishard_index_encoding="gzip", data_encoding=data_encoding)
