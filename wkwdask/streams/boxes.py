"""Read many boxes of a stored array, decoding each chunk once, however many boxes overlap it.

Pairs of a chunk and a box that touch each other are listed with arrays, and sorted by file and Morton code::

    boxes  [ 0   ]          pairs  chunk 0: box 0            decode chunk 0 into box 0
              [ 1   ]              chunk 1: box 0, box 1     decode chunk 1 once, copy it to box 0 and box 1
    chunks |  0 |  1 |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import FormatError
from wkwdask.geometry import morton
from wkwdask.geometry.mag import vec3
from wkwdask.kernels.arrays import copy_into
from wkwdask.model.codec import clip
from wkwdask.model.stored_array import BoxCodec
from wkwdask.streams.threads import for_each, num_parts, read_on_threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.stored_array import StoredArray


class _Target(NamedTuple):
    """Part of the result that overlaps a chunk."""

    out: npt.NDArray[Any]
    corner: Sequence[int]
    """Place of the chunk's first voxel in ``out``."""

    def part(self, shape: Sequence[int]) -> tuple[npt.NDArray[Any], tuple[slice, ...]]:
        """Return the view of the overlap, and its place in the chunk."""
        where, part = clip(self.corner, shape, self.out.shape)
        return self.out[where], part


def read_boxes(array: StoredArray, corners: npt.NDArray[np.int64], outs: Sequence[npt.NDArray[Any]], threads: int) -> None:
    """Fill zeroed arrays (c, x, y, z), one for each box, with the voxels from absolute ``corners``, shape (n, 3), on."""
    if len(outs) == 1:
        read_on_threads(array, outs[0], vec3(corners[0].tolist()), threads)
        return
    pairs = _list_pairs(array, corners, outs)
    count = len(pairs.cells)
    parts = min(count, num_parts(threads, count * math.prod(array.grid.chunk) * array.dtype.itemsize))
    if parts:
        for_each(lambda batch: _Batch(array, pairs, batch).read(), np.array_split(np.arange(count), parts), threads)


class _Pairs(NamedTuple):
    """Chunks that boxes touch, and the boxes that touch each chunk."""

    cells: npt.NDArray[np.int64]
    """Chunks (x, y, z) in the order of files and Morton codes, shape (n, 3)."""
    cuts: npt.NDArray[np.int64]
    """First of the pairs of each chunk in ``boxes``, and their total, shape (n + 1,)."""
    boxes: npt.NDArray[np.int64]
    """Boxes, chunk by chunk."""
    insides: list[npt.NDArray[Any]]
    """Part of each result inside the stored array."""
    lows: list[list[int]]
    """First voxel of each of these parts, counted from the first stored voxel (c, x, y, z)."""


def _list_pairs(array: StoredArray, corners: npt.NDArray[np.int64], outs: Sequence[npt.NDArray[Any]]) -> _Pairs:
    first = 0 if array.channels is None else array.channels[0]
    size, chunk = np.array(array.grid.size[1:]), np.array(array.grid.chunk[1:])
    wanted = corners - array.grid.origin
    shapes = np.array([out.shape[1:] for out in outs], np.int64).reshape(-1, 3)
    low = np.clip(wanted, 0, size)
    high = np.clip(wanted + shapes, low, size)
    insides = list(outs)
    for n in np.flatnonzero((low != wanted).any(axis=1) | (high != wanted + shapes).any(axis=1)).tolist():
        insides[n] = outs[n][:, *(slice(a, b) for a, b in zip((low - wanted)[n], (high - wanted)[n], strict=True))]
    # Number the chunks of each box, x fastest: chunk k of a box has the index k % nx, k // nx % ny, k // nx // ny.
    lowest, counts = low // chunk, np.where((high > low).all(axis=1, keepdims=True), -(-high // chunk) - low // chunk, 0)
    totals = counts.prod(axis=1)
    boxes = np.repeat(np.arange(len(outs)), totals)
    rest = np.arange(len(boxes)) - np.repeat(np.cumsum(totals) - totals, totals)
    cells = np.empty((len(boxes), 3), np.int64)
    for axis in range(3):
        rest, inside = np.divmod(rest, counts[boxes, axis])
        cells[:, axis] = inside + lowest[boxes, axis]
    order, starts = _group(array, cells)
    lows = np.concatenate([np.full((len(low), 1), first), low], axis=1).tolist()
    return _Pairs(cells[order[starts]], np.append(starts, len(order)), boxes[order], insides, lows)


def _group(array: StoredArray, cells: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sort chunks (x, y, z) by file and Morton code; return the order and the first place of each chunk in it."""
    grid = array.grid
    file = grid.file or (1 << 62,) * 4
    files, inside = np.divmod(cells, [max(1, n // edge) for n, edge in zip(file[1:], grid.chunk[1:], strict=True)])
    columns = [*(inside >> morton.MAX_BITS).T, *files.T]
    keys = [morton.encode(inside & ((1 << morton.MAX_BITS) - 1)), *(column for column in columns if column.size and column.min() < column.max())]
    order = np.lexsort(keys)
    ordered = cells[order]
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(order)), np.bool_), (ordered[1:] != ordered[:-1]).any(axis=1)]))
    return order, starts


class _Batch:
    """Some of the chunks, decoded by one thread."""

    def __init__(self, array: StoredArray, pairs: _Pairs, numbers: npt.NDArray[np.int64]) -> None:
        self._array, self._pairs = array, pairs
        cells = pairs.cells[numbers]
        self._numbers = dict(zip(map(tuple, cells.tolist()), numbers.tolist(), strict=True))
        first, count = (0, array.grid.size[0]) if array.channels is None else array.channels
        channels = range(first // array.grid.chunk[0], -(-(first + count) // array.grid.chunk[0]))
        self._cells = np.concatenate([np.insert(cells, 0, channel, axis=1) for channel in channels])
        self._memory = np.empty(array.grid.chunk, array.dtype, order="F")

    def read(self) -> None:
        """Decode each chunk and copy it to its boxes."""
        array, seen = self._array, set()
        try:
            for cell in self._decode_boxes() if isinstance(array.layout, BoxCodec) else self._decode():
                seen.add(cell)
        except FormatError:
            array.identity.check(has_absent=True)  # raises ReplacedError if these are files of another array
            raise
        array.identity.check(has_absent=len(seen) < len(self._cells))
        if array.fill:
            for cell in set(map(tuple, self._cells.tolist())) - seen:
                for target in self._targets(cell):
                    target.part(array.grid.chunk)[0][...] = array.fill

    def _targets(self, cell: Vec4) -> list[_Target]:
        pairs, number = self._pairs, self._numbers[cell[1:]]
        corner = [n * edge for n, edge in zip(cell, self._array.grid.chunk, strict=True)]
        return [
            _Target(pairs.insides[box], [a - b for a, b in zip(corner, pairs.lows[box], strict=True)])
            for box in pairs.boxes[pairs.cuts[number] : pairs.cuts[number + 1]].tolist()
        ]

    def _decode(self) -> Iterator[Vec4]:
        array, codec = self._array, self._array.codec
        for cell, data, path, offset in array.layout.chunks_at(array, self._cells):
            shape, source, targets = array.grid.shape_at(cell), array.source_of(path, cell), self._targets(cell)
            if len(targets) == 1:  # a codec may decode a part of a chunk faster than the whole
                codec.decode_into(data, shape, targets[0].out, targets[0].corner, source, offset)
            else:
                self._copy(codec.decode_chunk(data, shape, self._memory, source, offset), targets)
            yield cell

    def _decode_boxes(self) -> Iterator[Vec4]:
        """Decode chunks by the layout's own function for boxes."""
        array = self._array
        layout = array.layout
        assert isinstance(layout, BoxCodec)
        for c, x, y, z in self._cells.tolist():
            cell = (c, x, y, z)
            corner, targets = [n * edge for n, edge in zip(cell, array.grid.chunk, strict=True)], self._targets(cell)
            shape = array.grid.clipped_shape_at(cell)
            if len(targets) == 1:
                out, part = targets[0].part(shape)
                a, b, d, e = (n + where.start for n, where in zip(corner, part, strict=True))
                layout.read_box(array, out, (a, b, d, e), fill_zeros=True)
            else:
                voxels = self._memory[tuple(map(slice, shape))]
                a, b, d, e = corner
                self._copy(voxels if layout.read_box(array, voxels, (a, b, d, e), fill_zeros=False) else None, targets)
            yield cell

    def _copy(self, voxels: npt.NDArray[Any] | None, targets: list[_Target]) -> None:
        if voxels is None:
            return
        for target in targets:
            out, part = target.part(voxels.shape)
            copy_into(voxels[part], out)
