"""Values of a volume at many points, with one read for each chunk that contains points."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import BoundsError
from wkwdask.geometry.mag import vec3
from wkwdask.model.stored_array import StoredArray
from wkwdask.streams.threads import for_each

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray, IntArray
    from wkwdask.model.volume import Volume


_REMOTE_READERS = 16


def sample_points(volume: Volume, points: IntArray) -> AnyArray:
    """Return the values at points, shape (n, 3), as an array of shape (n, c). Chunks of a remote
    volume are read concurrently."""
    outside = np.flatnonzero(
        (points < volume.box.topleft).any(axis=1) | (points >= volume.box.bottomright).any(axis=1)
    )
    if outside.size:
        raise BoundsError(
            f"{volume.name}: point {points[outside[0]].tolist()} lies outside the box {volume.box}"
        )
    values = np.zeros((len(points), volume.num_channels), volume.dtype)
    if not len(points):
        return values
    # Sort the points by chunk: one read of the common box of its points then decodes each chunk
    # once. A number for each chunk between them could need more than 64 bits.
    chunks = (points - volume.origin) // volume.chunk_shape
    by_chunk = np.lexsort(chunks.T[::-1])
    is_next = (np.diff(chunks[by_chunk], axis=0) != 0).any(axis=1)
    cuts = [0, *(np.flatnonzero(is_next) + 1).tolist(), len(points)]

    def read(span: tuple[int, int]) -> None:
        members = by_chunk[span[0] : span[1]]
        low, high = points[members].min(axis=0), points[members].max(axis=0) + 1
        voxels = np.empty((volume.num_channels, *(high - low)), volume.dtype, order="F")
        volume.read_into(voxels, vec3(low.tolist()))
        x, y, z = (points[members] - low).T
        values[members] = voxels[:, x, y, z].T

    for_each(
        read,
        list(pairwise(cuts)),
        _REMOTE_READERS if isinstance(volume, StoredArray) and volume.store.is_remote else 1,
    )
    return values
