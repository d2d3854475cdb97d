"""Encoding of boxes of voxels into the chunks of an array that is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import minus, plus
from wkwdask.kernels.arrays import is_zero
from wkwdask.model.layout import Shards
from wkwdask.model.volume import read_voxels
from wkwdask.model.writing.chunk_order import chunk_nbytes_of, ordered_chunks, touched_cells
from wkwdask.model.writing.file_buffer import Arena, FileBuffer, MemoryBuffer
from wkwdask.model.writing.receipts import Stats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.array_types import AnyArray, ByteArray, IntArray, UintArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.stored_array import StoredArray

_BATCH_NBYTES = 4 << 20  # of voxels that are encoded in one call


@dataclass(slots=True)
class EncodedChunks:
    """Encoded chunks of a box, which a writer stores."""

    stats: Stats
    codes: UintArray = field(default_factory=lambda: np.empty(0, np.uint64))
    """Codes of the stored chunks in a shard, ascending."""
    sizes: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    """Encoded size of each [bytes]."""
    num_nonzero: int = 0
    """Number of chunks that are not all zero."""
    output: MemoryBuffer | None = None
    """Bytes of these chunks, one after another."""
    files: list[tuple[Vec4, bytes | memoryview | None]] = field(default_factory=list)
    """Chunks that are each a file, None for chunks of zeros."""
    arena: Arena | None = None
    """Memory of these chunks."""

    def take(self) -> Iterator[ByteArray]:
        """Yield all bytes, and release their memory afterwards."""
        if self.output is not None:
            yield self.output.data
            self.output.release()


@dataclass(frozen=True, slots=True)
class BoxEncoder:
    """Encoder of boxes of voxels for writers of parts and whole shards; any thread can use it."""

    array: StoredArray
    """Array that is written, in coordinates relative to its first voxel."""
    merges: bool
    """Whether chunks keep their stored voxels around the box."""

    @property
    def has_morton_order(self) -> bool:
        """Whether chunks lie in a file in Morton order."""
        return isinstance(self.array.layout, Shards) and self.array.layout.is_ordered

    def encode_box(self, array: AnyArray, topleft: Vec3, *, is_part: bool = False) -> EncodedChunks:
        """Encode an array (c, x, y, z) of whole chunks, which may extend beyond the box, for a
        writer of a part or a whole shard."""
        voxels, stats = self.clip_to_box(array, topleft), Stats(self.array.mag)
        stats.add(voxels, topleft)
        voxels, topleft = (
            self._with_borders(voxels, topleft)
            if self.merges
            else self._from_chunk_corner(voxels, topleft)
        )
        return (
            self.encode_chunks(voxels, topleft, stats, is_part=is_part)
            if self.array.layout.is_sharded
            else self._encoded_files(voxels, topleft, stats)
        )

    def encoded_nbytes(self, array: AnyArray, topleft: Vec3) -> int:
        """Encode an array (c, x, y, z) of whole chunks without storing it, and return the size."""
        voxels, topleft = self._from_chunk_corner(self.clip_to_box(array, topleft), topleft)
        sink = FileBuffer(None)
        _, sizes, _ = self._encode_into(
            sink, voxels, topleft, stores_zeros=self.array.layout.is_dense
        )
        sink.discard()
        return int(sizes.sum())

    def clip_to_box(self, array: AnyArray, topleft: Vec3) -> AnyArray:
        """Cut off voxels beyond the box."""
        x, y, z = (
            slice(0, max(0, high - t))
            for high, t in zip(self.array.box.bottomright, topleft, strict=True)
        )
        return array[:, x, y, z]

    def _with_borders(self, array: AnyArray, topleft: Vec3) -> tuple[AnyArray, Vec3]:
        """Extend an array (c, x, y, z) to whole chunks with the stored voxels around it."""
        box = BoundingBox(topleft, array.shape[1:], self.array.mag)
        whole = box.aligned(self.array.chunk_shape).intersection(self.array.extent)
        if box == whole or not array.size:
            return array, topleft
        out = np.empty((self.array.num_channels, *whole.size), self.array.dtype, order="F")
        for border in self._borders(box, whole):
            # chunks that are replaced whole are not read: they may be damaged
            part_of_array(out, border, whole.topleft)[...] = read_voxels(self.array, border)
        part_of_array(out, box, whole.topleft)[...] = array
        return out, whole.topleft

    def _from_chunk_corner(self, array: AnyArray, topleft: Vec3) -> tuple[AnyArray, Vec3]:
        """Extend an array (c, x, y, z) by zeros to the corner of a chunk: a box may begin inside of
        one."""
        before = vec3([n % edge for n, edge in zip(topleft, self.array.chunk_shape, strict=True)])
        if before == (0, 0, 0):
            return array, topleft
        x, y, z = before
        out = np.zeros((len(array), *plus(before, vec3(array.shape[1:]))), array.dtype, order="F")
        out[:, x:, y:, z:] = array
        return out, minus(topleft, before)

    def _borders(self, box: BoundingBox, whole: BoundingBox) -> Iterator[BoundingBox]:
        """Cut the chunks that a box cuts from those that it touches, into at most 6 boxes."""
        low, high = list(whole.topleft), list(whole.bottomright)
        for axis, edge in enumerate(self.array.chunk_shape):
            start, stop = -(-box.topleft[axis] // edge) * edge, box.bottomright[axis]
            stop = stop if stop == high[axis] else stop // edge * edge
            start = min(start, high[axis])
            stop = max(start, stop)
            for first, last in ((low[axis], start), (stop, high[axis])):
                if first < last:
                    yield BoundingBox.from_corners(
                        (*low[:axis], first, *low[axis + 1 :]),
                        (*high[:axis], last, *high[axis + 1 :]),
                        self.array.mag,
                    )
            low[axis], high[axis] = start, stop

    def encode_chunks(
        self, voxels: AnyArray, topleft: Vec3, stats: Stats, *, is_part: bool
    ) -> EncodedChunks:
        """Encode an array of whole chunks for a file of many chunks."""
        output = MemoryBuffer()
        codes, sizes, num_nonzero = self._encode_into(
            output, voxels, topleft, stores_zeros=self.array.layout.is_dense and not is_part
        )
        is_stored = sizes > 0
        return EncodedChunks(stats, codes[is_stored], sizes[is_stored], num_nonzero, output)

    def _encode_into(
        self, output: FileBuffer, voxels: AnyArray, topleft: Vec3, *, stores_zeros: bool
    ) -> tuple[UintArray, IntArray, int]:
        """Append the chunks of an array to a file; return their codes, their sizes, and how many
        are not all zero."""
        grid, encode, num_nonzero = self.array.grid, self.array.codec.encode_batch, 0
        chunk_nbytes = chunk_nbytes_of(self.array)
        all_codes, all_sizes = [], []
        for c in range(grid.counts[0]):
            channels = voxels[c * grid.chunk[0] : (c + 1) * grid.chunk[0]]
            codes, corners = ordered_chunks(self.array, voxels.shape[1:], topleft, c)
            all_codes.append(codes)
            for batch in _batches(len(codes), chunk_nbytes):
                sizes, nonzero = encode(
                    channels,
                    corners[batch],
                    self.array.chunk_shape,
                    output,
                    self.array.store.url,
                    stores_zeros=stores_zeros,
                )
                all_sizes.append(sizes)
                num_nonzero += nonzero
        return (
            np.concatenate(all_codes),
            np.concatenate(all_sizes or [np.zeros(0, np.int64)]),
            num_nonzero,
        )

    def _encoded_files(self, voxels: AnyArray, topleft: Vec3, stats: Stats) -> EncodedChunks:
        array, edges, naming = self.array, self.array.grid.chunk, self.array.naming
        assert naming is not None
        files: list[tuple[Vec4, bytes | memoryview | None]] = []
        arena = Arena()
        box = BoundingBox(topleft, voxels.shape[1:], array.mag)
        for c, x, y, z in touched_cells(array, box).tolist():
            cell = (c, x, y, z)
            corner = [n * edge - t for n, edge, t in zip(cell, edges, (0, *topleft), strict=True)]
            chunk = voxels[
                tuple(slice(low, low + edge) for low, edge in zip(corner, edges, strict=True))
            ]
            data: bytes | memoryview | None = None
            if not is_zero(chunk):
                path = array.store.path_of(naming.key(cell))
                data = array.codec.encode_in_arena(chunk, arena, path)
            files.append((cell, data))
        return EncodedChunks(stats, files=files, arena=arena)


def _batches(count: int, nbytes: int) -> Iterator[slice]:
    """Split chunks into batches that are encoded at once."""
    step = max(1, _BATCH_NBYTES // nbytes)
    return (slice(first, first + step) for first in range(0, count, step))
