"""Read boxes for users: from the cache of decoded blocks, and the rest on several threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.model.stored_array import StoredArray
from wkwdask.streams.block_cache import block_cache
from wkwdask.streams.threads import for_each, num_parts

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume

MIN_NBYTES = 16 << 20
"""Chunks up to this size are decoded by one thread unless the caller asks for more."""


def decoded_nbytes(volume: Volume, out: AnyArray, topleft: Vec3) -> int:
    """Return the size of the chunks that an array touches: a slice decodes many times the voxels
    that it returns."""
    # without loops, because reads of small boxes ask too
    (x, y, z), (i, j, k), (a, b, c) = topleft, volume.chunk_shape, volume.origin
    channels, width, height, depth = out.shape
    x, y, z = x - a, y - b, z - c
    count = (
        ((x + width - 1) // i - x // i + 1)
        * ((y + height - 1) // j - y // j + 1)
        * ((z + depth - 1) // k - z // k + 1)
    )
    nbytes: int = count * i * j * k * channels * out.itemsize
    return nbytes


def read_on_threads(
    volume: Volume, out: AnyArray, topleft: Vec3, threads: int, first_channel: int = 0
) -> None:
    """Fill an array, see :meth:`wkwdask.model.volume.Volume.read_into`. No chunk is decoded
    twice."""
    rest = block_cache.read(volume, out, topleft, first_channel, threads)
    if rest is None:
        _decode(volume, out, topleft, threads, first_channel)
        return
    for box in rest:
        _decode(volume, part_of_array(out, box, topleft), box.topleft, threads, first_channel)


def _decode(volume: Volume, out: AnyArray, topleft: Vec3, threads: int, first_channel: int) -> None:
    """Decode an array in parts, which threads fill."""
    parts = 1 if threads == 1 else num_parts(threads, decoded_nbytes(volume, out, topleft))
    chunk = volume.chunk_shape
    if isinstance(volume, StoredArray) and volume.store.is_remote:
        # A remote volume reads files ahead, so each thread needs one part. It is split between
        # files only: their ranges stay long.
        parts, chunk = (1, chunk) if volume.grid.file is None else (threads, volume.grid.file[1:])
    if parts == 1:
        volume.read_into(out, topleft, first_channel)
        return
    boxes = split_box(
        BoundingBox(topleft, out.shape[1:], volume.box.mag),
        volume.origin,
        chunk,
        volume.shard_shape,
        parts,
    )
    for_each(
        lambda box: volume.read_into(part_of_array(out, box, topleft), box.topleft, first_channel),
        boxes,
        threads,
    )


def split_box(
    box: BoundingBox, origin: Vec3, chunk: Vec3, shard: Vec3, count: int
) -> list[BoundingBox]:
    """Split a box into at least ``count`` parts if it has so many chunks, in the order of the
    memory of a Fortran array.

    Parts are cut between shards if there are enough of them, else between groups of 2**k chunks,
    which are few ranges of a file in Morton order. An axis is split only if the later ones do not
    give enough parts.
    """
    cuts: list[list[int]] = []
    for axis in (2, 1, 0):
        low, high = box.topleft[axis] - origin[axis], box.bottomright[axis] - origin[axis]
        step = shard[axis] if (high - low) // shard[axis] >= count else chunk[axis]
        while (high - low) // (2 * step) >= count:
            step *= 2
        borders = (
            [low, *range(low // step * step + step, high, step), high] if count > 1 else [low, high]
        )
        count = -(-count // (len(borders) - 1))
        cuts.append([border + origin[axis] for border in borders])
    z, y, x = cuts
    return [
        BoundingBox.from_corners((x[i], y[j], z[k]), (x[i + 1], y[j + 1], z[k + 1]), box.mag)
        for k in range(len(z) - 1)
        for j in range(len(y) - 1)
        for i in range(len(x) - 1)
    ]
