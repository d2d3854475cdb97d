"""Read many boxes of a stored array, decoding each chunk once, however many boxes overlap it.

Pairs of a chunk and a box that touch each other are listed with arrays, and sorted by file and
Morton code::

    boxes  [ 0   ]          pairs  chunk 0: box 0            decode chunk 0 into box 0
              [ 1   ]              chunk 1: box 0, box 1     decode chunk 1 once, copy it to box 0 and box 1
    chunks |  0 |  1 |
"""  # noqa: E501

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import FormatError
from wkwdask.geometry import morton
from wkwdask.kernels.arrays import copy_into
from wkwdask.model.codec import clip
from wkwdask.model.stored_array import BoxLayout, ChunkPairs
from wkwdask.streams.threads import for_each, num_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.array_types import AnyArray, IntArray
    from wkwdask.model.stored_array import StoredArray


def read_boxes(
    array: StoredArray, corners: IntArray, outs: Sequence[AnyArray], threads: int
) -> None:
    """Fill zeroed Fortran arrays (c, x, y, z), one for each box, with the voxels from absolute
    ``corners``, shape (n, 3), on."""
    pairs = _list_pairs(array, corners, outs)
    count = len(pairs.cells)
    parts = min(
        count, num_parts(threads, count * math.prod(array.grid.chunk) * array.dtype.itemsize)
    )
    borders = [count * n // parts for n in range(parts + 1)] if parts else []
    for_each(
        lambda part: _read_pairs(array, pairs.between(*part)), list(pairwise(borders)), threads
    )


def _list_pairs(array: StoredArray, corners: IntArray, outs: Sequence[AnyArray]) -> ChunkPairs:
    size, chunk = np.array(array.grid.size[1:]), np.array(array.grid.chunk[1:])
    wanted = corners - array.grid.origin
    shapes = np.array([out.shape[1:] for out in outs], np.int64).reshape(-1, 3)
    low = np.clip(wanted, 0, size)
    high = np.clip(wanted + shapes, low, size)
    insides = list(outs)
    clipped = np.flatnonzero(
        (low != wanted).any(axis=1) | (high != wanted + shapes).any(axis=1)
    ).tolist()
    for n in clipped:
        insides[n] = outs[n][
            :, *(slice(a, b) for a, b in zip((low - wanted)[n], (high - wanted)[n], strict=True))
        ]
    # Number the chunks of each box, x fastest: chunk k of a box has the index k % nx, k // nx % ny,
    # k // nx // ny.
    lowest, counts = (
        low // chunk,
        np.where((high > low).all(axis=1, keepdims=True), -(-high // chunk) - low // chunk, 0),
    )
    totals = counts.prod(axis=1)
    boxes = np.repeat(np.arange(len(outs)), totals)
    rest = np.arange(len(boxes)) - np.repeat(np.cumsum(totals) - totals, totals)
    cells = np.empty((len(boxes), 3), np.int64)
    for axis in range(3):
        rest, inside = np.divmod(rest, counts[boxes, axis])
        cells[:, axis] = inside + lowest[boxes, axis]
    order = _file_order(array, cells)
    ordered = cells[order]
    starts = np.flatnonzero(
        np.concatenate(
            [np.ones(min(1, len(order)), np.bool_), (ordered[1:] != ordered[:-1]).any(axis=1)]
        )
    )
    return ChunkPairs(
        ordered[starts], np.append(starts, len(order)), boxes[order], insides, low, bool(clipped)
    )


def _file_order(array: StoredArray, cells: IntArray) -> IntArray:
    """Return the order of chunks (x, y, z) by file and Morton code."""
    grid = array.grid
    file = grid.file or (1 << 62,) * 4
    files, inside = np.divmod(
        cells, [max(1, n // edge) for n, edge in zip(file[1:], grid.chunk[1:], strict=True)]
    )
    columns = [*(inside >> morton.MAX_BITS).T, *files.T]
    keys = [
        morton.encode(inside & ((1 << morton.MAX_BITS) - 1)),
        *(column for column in columns if column.size and column.min() < column.max()),
    ]
    return np.lexsort(keys)


def _read_pairs(array: StoredArray, pairs: ChunkPairs) -> None:
    """Decode each chunk once and copy it to its boxes."""
    reader = _PairReader(array, pairs)
    try:
        if isinstance(array.layout, BoxLayout):
            for number in array.layout.read_pairs(array, pairs):
                reader.read_box(array.layout, number)
        else:
            reader.read_stored()
    except FormatError:
        # raises ReplacedError if these are files of another array
        array.identity.check(has_absent=True)
        raise


class _PairReader:
    """Reader of chunks into the boxes that they touch."""

    def __init__(self, array: StoredArray, pairs: ChunkPairs) -> None:
        self._array, self._pairs = array, pairs
        self._first, self._count = (
            (0, array.grid.size[0]) if array.channels is None else array.channels
        )

    def _targets(self, number: int, channel: int) -> Iterator[tuple[AnyArray, list[int]]]:
        """Yield the boxes that a chunk touches, and the place of its first voxel in each;
        ``channel`` is its first channel."""
        pairs = self._pairs
        boxes = pairs.boxes[pairs.cuts[number] : pairs.cuts[number + 1]]
        places = (pairs.cells[number] * self._array.grid.chunk[1:] - pairs.lows[boxes]).tolist()
        for box, place in zip(boxes.tolist(), places, strict=True):
            yield pairs.outs[box], [channel - self._first, *place]

    def read_stored(self) -> None:
        """Read all chunks: decode them one by one as the layout yields them."""
        array, chunk = self._array, self._array.grid.chunk
        channels = range(self._first // chunk[0], -(-(self._first + self._count) // chunk[0]))
        cells = np.concatenate(
            [np.insert(self._pairs.cells, 0, channel, axis=1) for channel in channels]
        )
        missing = dict(
            zip(
                map(tuple, cells.tolist()),
                list(range(len(self._pairs.cells))) * len(channels),
                strict=True,
            )
        )
        memory = np.empty(chunk, array.dtype, order="F")
        for cell, data, path, offset in array.layout.chunks_at(array, cells):
            shape, source, targets = (
                array.grid.shape_at(cell),
                array.layout.source_of(path, cell),
                list(self._targets(missing.pop(cell), cell[0] * chunk[0])),
            )
            if len(targets) == 1:  # a codec may decode a part of a chunk faster than the whole
                out, place = targets[0]
                array.codec.decode_into(data, shape, out, place, source, offset)
            else:
                _copy(array.codec.decode_chunk(data, shape, memory, source, offset), targets)
        array.identity.check(has_absent=bool(missing))
        for cell, number in missing.items() if array.fill else ():
            for out, place in self._targets(number, cell[0] * chunk[0]):
                out[clip(place, chunk, out.shape)[0]] = array.fill

    def read_box(self, layout: BoxLayout, number: int) -> None:
        """Read all channels of one chunk by the layout's function for boxes."""
        array, pairs = self._array, self._pairs
        x, y, z = (
            n * edge
            for n, edge in zip(pairs.cells[number].tolist(), array.grid.chunk[1:], strict=True)
        )
        shape = (self._count, *array.grid.clipped_shape_at((0, *pairs.cells[number].tolist()))[1:])
        voxels = np.empty(shape, array.dtype, order="F")
        layout.read_box(array, voxels, (self._first, x, y, z), fill_zeros=True)
        _copy(voxels, self._targets(number, self._first))


def _copy(voxels: AnyArray | None, targets: Iterable[tuple[AnyArray, list[int]]]) -> None:
    """Copy a decoded chunk to its boxes, which are zero already if it is."""
    if voxels is None:
        return
    for out, place in targets:
        where, part = clip(place, voxels.shape, out.shape)
        copy_into(voxels[part], out[where])
