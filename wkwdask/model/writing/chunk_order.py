"""Order of the chunks of a shard that is written: its files along c follow each other, and the
chunks of each file have the codes of the layout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_range
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import ceil_divide, divide, plus
from wkwdask.model.layout import Shards, box_cells
from wkwdask.model.volume import voxel_nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import IntArray, UintArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import ChunkGrid
    from wkwdask.model.stored_array import StoredArray


def shards_of(array: StoredArray) -> Shards:
    """Return the layout of an array whose files have many chunks."""
    assert isinstance(array.layout, Shards)
    return array.layout


def chunk_nbytes_of(array: StoredArray) -> int:
    """Return the size of the decoded voxels of a chunk, with all channels [bytes]."""
    return math.prod(array.chunk_shape) * voxel_nbytes(array)


def touched_cells(array: StoredArray, box: BoundingBox) -> IntArray:
    """List the chunks that a box, counted from the first voxel, touches, with all channels, shape
    (n, 4)."""
    return box_cells((range(array.grid.counts[0]), *cell_range(box, array.chunk_shape)))


def codes_in_shard(array: StoredArray, cells: IntArray) -> UintArray:
    """Return the codes of chunks, shape (n, 4), in their shard."""
    return shards_of(array).codes(cells) + _first_codes(array, cells[:, 0])


def ordered_chunks(
    array: StoredArray, size: Sequence[int], topleft: Vec3, c: int = 0
) -> tuple[UintArray, IntArray]:
    """Return codes and first voxels of the chunks of a box of whole chunks, in ascending order of
    codes; voxels are counted from the box.

    ``c`` is the index of the chunks along the channels.
    """
    low = divide(topleft, array.chunk_shape)
    high = ceil_divide(plus(topleft, vec3(size)), array.chunk_shape)
    codes, places = array.layout.ordered_cells((c, *low), (c + 1, *high))
    corners = places[:, 1:] * array.chunk_shape - topleft
    return codes + _first_codes(array, c) if array.layout.is_sharded else codes, corners


def channel_chunks_per_file(grid: ChunkGrid) -> int:
    """Return the number of chunks of a file along the channels."""
    return -(-(grid.file or grid.size)[0] // grid.chunk[0])


def _first_codes(array: StoredArray, c: IntArray | int) -> UintArray:
    """Return the code at which the file of the chunks at an index along c begins."""
    return np.asarray(
        c // channel_chunks_per_file(array.grid) * shards_of(array).codes_per_file(array.grid),
        np.uint64,
    )
