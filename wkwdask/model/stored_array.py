"""Stored array of any format, composed of a store, a naming scheme, a grid of chunks, a layout of
chunks in files, and a codec.

All formats share this implementation of reading. Boxes are absolute; only the grid knows the voxel
at which the array starts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import FormatError, MissingError, ReplacedError
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox, moved
from wkwdask.geometry.vectors import plus
from wkwdask.model.array_files import ArrayFiles
from wkwdask.model.chunk_grid import Vec4
from wkwdask.model.codec import clip
from wkwdask.model.volume import RandomAccessVolume

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wkwdask.array_types import AnyArray, IntArray
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.chunk_grid import ChunkGrid, Ranges
    from wkwdask.model.codec import ChunkCodec
    from wkwdask.model.identity import Identity
    from wkwdask.model.layout import ShardLayout
    from wkwdask.model.levels import Lengths
    from wkwdask.model.naming import KeyNaming
    from wkwdask.model.store import Store


class BoxLayout:
    """Layout that decodes whole boxes, because this is faster, or because the codec is opaque.

    Not an abstract class: asking for one of these takes ten times as long.
    """

    __slots__ = ()

    @abstractmethod
    def read_box(self, array: StoredArray, out: AnyArray, low: Vec4, *, fill_zeros: bool) -> int:
        """Fill an array with the voxels from ``low`` on, all inside the stored array, see
        :meth:`wkwdask.model.volume.Volume.read_into`."""

    def read_pairs(self, array: StoredArray, pairs: ChunkPairs) -> Iterable[int]:
        """Decode chunks into the boxes that they touch, each chunk once; yield the indices of
        chunks that must be read by :meth:`read_box` instead."""
        del array
        return range(len(pairs.cells))


class ChunkPairs(NamedTuple):
    """Chunks that boxes touch, and the boxes that each chunk touches: zeroed Fortran arrays (c, x,
    y, z) with all channels."""

    cells: IntArray
    """Chunks (x, y, z) in the order of files and Morton codes, shape (n, 3)."""
    cuts: IntArray
    """First of the boxes of each chunk in ``boxes``, and the end of the last, shape (n + 1,)."""
    boxes: IntArray
    """Indices of boxes, chunk by chunk."""
    outs: list[AnyArray]
    """Part of each box inside the stored array."""
    lows: IntArray
    """First voxel (x, y, z) of each of these parts, counted from the first stored voxel, shape (m,
    3)."""
    is_clipped: bool
    """Whether any box reaches beyond the stored array."""

    @property
    def addresses(self) -> IntArray:
        """Address of each box in memory."""
        return np.array([out.__array_interface__["data"][0] for out in self.outs], np.int64)

    @property
    def shapes(self) -> IntArray:
        """Shape (x, y, z) of each box, shape (m, 3)."""
        return np.array([out.shape[1:] for out in self.outs], np.int64)

    def between(self, first: int, last: int) -> ChunkPairs:
        """Return some of the chunks."""
        return self._replace(cells=self.cells[first:last], cuts=self.cuts[first : last + 1])


@dataclass(frozen=True, slots=True)
class StoredArray(RandomAccessVolume):
    """One mag, scale, dataset or level. Holds no open file and is small to pickle."""

    store: Store
    """Folder of the array."""
    grid: ChunkGrid
    naming: KeyNaming | None
    """Names of its files, None if unknown."""
    layout: ShardLayout
    codec: ChunkCodec
    dtype: np.dtype[Any]
    """Data type in native byte order."""
    identity: Identity
    mag: Mag = MAG_1
    """Mag, or mag 1 if it has none."""
    fill: int | float = 0
    """Value of missing chunks."""
    lengths_nm: Lengths | None = None
    crop: BoundingBox | None = None
    """Bounding box if it is not the whole array."""
    channels: tuple[int, int] | None = None
    """First channel and number of channels if they are not all."""

    # --------------------------------------------------------------------------------------------
    # geometry

    @property
    def num_channels(self) -> int:
        return self.grid.size[0] if self.channels is None else self.channels[1]

    @property
    def extent(self) -> BoundingBox:
        """Box of the whole array [voxels of its mag]."""
        return BoundingBox(self.grid.origin, self.grid.size[1:], self.mag)

    @property
    def box(self) -> BoundingBox:
        return self.extent if self.crop is None else self.crop

    @property
    def origin(self) -> Vec3:
        """Absolute voxel at which the grids of chunks and files start."""
        return self.grid.origin

    @property
    def chunk_shape(self) -> Vec3:
        return self.grid.chunk[1:]

    @property
    def shard_shape(self) -> Vec3:
        """Shape (x, y, z) of a file, or a group of small files [voxels]."""
        return self.grid.unit

    @property
    def name(self) -> str:
        return self.store.url if self.naming is None else self.naming.array_path(self.store)

    @property
    def folder(self) -> str:
        """Folder of the array, or its path in a file that contains all of it."""
        return self.name

    @property
    def token(self) -> tuple[Any, ...]:
        parts = (
            self.store.url,
            self.grid,
            self.naming,
            self.layout,
            self.codec,
            self.dtype.str,
            self.fill,
        )
        return (*parts, self.box, self.channels, *self.identity.token)

    @property
    def content_token(self) -> tuple[Any, ...]:
        content = self.identity.content(self.box)
        if content is None:
            return self.token
        return (*content, *self.grid.origin) if any(self.grid.origin) else content

    @property
    def is_regular(self) -> bool:
        return self.layout.is_regular and not any(self.grid.origin)

    def at(self, store: Store) -> StoredArray:
        """Return the array in another folder."""
        return replace(self, store=store, identity=self.identity.at(store))

    def cropped(self, box: BoundingBox) -> StoredArray:
        """Return the array with another bounding box; voxels outside can still be read."""
        return replace(self, crop=box)

    def moved(self, shift: Vec3) -> StoredArray:
        if shift == (0, 0, 0):
            return self
        return replace(
            self,
            grid=replace(self.grid, origin=plus(self.grid.origin, shift)),
            crop=None if self.crop is None else moved(self.crop, shift),
        )

    @property
    def files(self) -> ArrayFiles:
        return ArrayFiles(self.store, self.grid, self.naming, self.identity, self.box, self.fill)

    def is_current(self) -> bool:
        try:
            self.identity.check(has_absent=True)
        except (MissingError, ReplacedError):
            return False
        return True

    # --------------------------------------------------------------------------------------------
    # voxels

    def read_into(
        self, out: AnyArray, topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True
    ) -> int:
        """Fill an array (c, x, y, z) with voxels, see
        :meth:`wkwdask.model.volume.Volume.read_into`."""
        first = first_channel + (0 if self.channels is None else self.channels[0])
        (x, y, z), size, shape = self.grid.origin, self.grid.size, out.shape
        wanted = (first, topleft[0] - x, topleft[1] - y, topleft[2] - z)
        rest = (
            size[0] - first - shape[0],
            size[1] - wanted[1] - shape[1],
            size[2] - wanted[2] - shape[2],
            size[3] - wanted[3] - shape[3],
        )
        # Fast path: for small boxes the steps below cost more than reading.
        if isinstance(self.layout, BoxLayout) and out.size and min(*wanted, *rest) >= 0:
            return self.layout.read_box(self, out, wanted, fill_zeros=fill_zeros)
        low = [max(a, 0) for a in wanted]
        high = [
            max(a, min(b + n, length))
            for a, b, n, length in zip(low, wanted, shape, size, strict=True)
        ]
        where = tuple(slice(a - w, b - w) for a, b, w in zip(low, high, wanted, strict=True))
        inside = out[where]
        nonzero = 0
        if inside.size:
            nonzero = self._read_inside(
                inside, (low[0], low[1], low[2], low[3]), high, fill_zeros=fill_zeros
            )
        if inside.shape != out.shape and (nonzero or fill_zeros):
            # zeros around the part that lies inside the array
            for axis, part in enumerate(where):
                for beyond in (slice(0, part.start), slice(part.stop, None)):
                    out[(slice(None),) * axis + (beyond,)] = 0
        return nonzero

    def _read_inside(
        self, out: AnyArray, low: Vec4, high: Sequence[int], *, fill_zeros: bool
    ) -> int:
        """Fill an array that lies inside the stored one, decoding each chunk once."""
        if isinstance(self.layout, BoxLayout):
            return self.layout.read_box(self, out, low, fill_zeros=fill_zeros)
        grid, ranges = self.grid, self.grid.cells(low, high)
        count, written = math.prod(map(len, ranges)), set[Vec4]()
        try:
            num_stored = self._decode_chunks(out, low, high, ranges, written)
        except FormatError:
            # raises ReplacedError if these are files of another array
            self.identity.check(has_absent=True)
            raise
        self.identity.check(has_absent=num_stored < count)
        # with a fill value other than 0, missing chunks are not zero
        has_fill = bool(self.fill) and num_stored < count
        if has_fill or (written and len(written) < count):
            for z, y, x, c in product(*ranges[::-1]):
                if (c, x, y, z) not in written:
                    place = zip((c, x, y, z), grid.chunk, low, strict=True)
                    corner = [n * edge - a for n, edge, a in place]
                    out[clip(corner, grid.chunk, out.shape)[0]] = self.fill
        elif fill_zeros and not written:
            out[...] = 0
        return len(written) + has_fill

    def _decode_chunks(
        self,
        out: AnyArray,
        low: Vec4,
        high: Sequence[int],
        ranges: Ranges,
        written: set[Vec4],
    ) -> int:
        """Decode the stored chunks of a box into an array.

        Adds the chunks that were written to ``written`` (all-zero chunks only with a fill value)
        and returns the number of stored chunks.
        """
        grid, codec, num_stored = self.grid, self.codec, 0
        for (cell, data, path, offset), slab in self.layout.slabs(self, ranges, (low[3], high[3])):
            num_stored += 1
            corner = [n * edge - a for n, edge, a in zip(cell, grid.chunk, low, strict=True)]
            shape = grid.shape_at(cell)
            if slab is not None:
                corner[3] += slab.first
                shape = (*shape[:3], slab.end - slab.first)
            if not codec.decode_into(
                data, shape, out, corner, self.layout.source_of(path, cell), offset
            ):
                if not self.fill:
                    continue
                out[clip(corner, shape, out.shape)[0]] = 0
            written.add(cell)
        return num_stored


def with_listing(array: StoredArray) -> StoredArray:
    """Return an array with a store that can list the files of the box; the names of files must be
    known."""
    return array.at(array.store.with_listing(array.files.possible_names()))


def box_of_files(array: StoredArray) -> BoundingBox:
    """Return the box around all stored files, by one listing."""
    whole = by_files(array.cropped(array.extent))
    rows = whole.at(array.store.with_listing(())).files.stored_states()[:, :3]
    if not len(rows) or array.grid.file is None:
        return array.extent
    low, high = rows.min(axis=0) * whole.shard_shape, (rows.max(axis=0) + 1) * whole.shard_shape
    box = BoundingBox.from_corners(low.tolist(), high.tolist(), array.box.mag)
    return box.intersection(array.extent)


def by_files(array: StoredArray) -> StoredArray:
    """Return an array whose shards are its files, as file records have them, if these have many
    chunks."""
    grid = array.grid
    if grid.file is None or not array.layout.is_sharded:
        return array
    return replace(array, grid=replace(grid, unit=grid.file[1:]))


def with_states(array: StoredArray, record: IntArray | None) -> StoredArray:
    """Return an array that knows the present states of its files; given its file record, if
    there is one."""
    names = () if record is None else array.files.recorded_names(record)
    return array.at(array.store.with_states(names))


def with_states_in(array: StoredArray, box: BoundingBox) -> StoredArray:
    """Return an array that knows the present shards that a box touches, and no others."""
    return array.at(array.store.with_states(array.files.names_of_shards(box), only_these=True))


def without_listing(array: StoredArray) -> StoredArray:
    """Return an array without the list of its remote files, small to pickle."""
    return array.at(array.store.at(array.store.url)) if array.store.is_remote else array
