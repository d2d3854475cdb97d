"""Stored chunks that are decoded one by one, so that each is used while it is in the CPU cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeGuard

from wkwdask.geometry.vectors import plus, times
from wkwdask.model.stored_array import StoredArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume


def decodes_chunks(volume: Volume) -> TypeGuard[StoredArray]:
    """Return whether :func:`decoded_chunks` can be used, and is faster than decoding into a larger
    box."""
    return (
        isinstance(volume, StoredArray)
        and volume.codec.decodes_chunks
        and volume.grid.chunk[0] == volume.grid.size[0]
        and volume.channels is None
        and not volume.fill
    )


def decoded_chunks(
    array: StoredArray, box: BoundingBox, memory: AnyArray
) -> Iterator[tuple[Vec3, AnyArray]]:
    """Decode the chunks that a box touches.

    Yields the first voxel and the voxels (c, x, y, z) of each chunk, valid until the next one.
    Missing and all-zero chunks are omitted; chunks at the end of the array may be shorter.
    ``memory`` has the shape of one chunk and may be used.
    """
    assert decodes_chunks(array)
    grid, layout, num_stored = array.grid, array.layout, 0
    box = box.intersection(array.extent)
    low, high = (
        (c, *(a - o for a, o in zip(corner, grid.origin, strict=True)))
        for c, corner in ((0, box.topleft), (grid.size[0], box.bottomright))
    )
    ranges = grid.cells(low, high)
    for cell, data, path, offset in layout.chunks(array, ranges):
        num_stored += 1
        voxels = array.codec.decode_chunk(
            data, grid.shape_at(cell), memory, layout.source_of(path, cell), offset
        )
        if voxels is not None:
            yield plus(grid.origin, times(cell[1:], grid.chunk[1:])), voxels
    array.identity.check(has_absent=num_stored < math.prod(map(len, ranges)))
