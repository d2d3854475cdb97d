"""One scale of a Neuroglancer precomputed volume, open for reading: chunks that are files, or that are in shards, on a local disk or remote.

The volume lives in coordinates of its own grid: its first voxel is voxel 0, and ``origin`` is the absolute voxel of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import MissingError, ReplacedError
from wkwdask.formats.precomputed.chunk import ChunkCodec
from wkwdask.formats.precomputed.files import (
    SUFFIXES,
    all_states,
    decompress_file,
    file_sizes,
    group_cells,
    has_files,
    largest_file,
    largest_nbytes,
    mark_occupied,
    shard_name,
    span_name,
    states_of,
    stored_boxes,
)  # fmt: skip
from wkwdask.formats.precomputed.gzip_stream import decompress_gzip
from wkwdask.formats.precomputed.info import FILE_NAME
from wkwdask.formats.precomputed.info_file import folder_state, info_of, look
from wkwdask.formats.precomputed.shard_files import StoredChunk, close_shard, open_shard
from wkwdask.geometry import compressed_morton, grid
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.grid import cell_range
from wkwdask.kernels.arrays import copy_into, is_zero
from wkwdask.plans.cells import cell_map
from wkwdask.store import files
from wkwdask.store.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.info_file import Opened
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.states import States
    from wkwdask.model.store import Store
    from wkwdask.plans.cells import CellMap

_CELLS_AT_ONCE = 1 << 16
_HELD_NBYTES = 64 << 20  # of remote files that are read at once
_DIRECT = "compressed_segmentation"  # the encoding that is decoded straight into its place

_suffixes: Lru[str] = Lru(1024)
"""The ending of the file that was found last in a scale's folder."""


@dataclass(frozen=True, slots=True)
class PrecomputedVolume:
    """One scale of a precomputed volume in one of its chunk sizes. Holds no open file and is small to pickle."""

    store: Store
    """The volume's folder."""
    dtype: np.dtype[Any]
    """Type of one channel, in native byte order."""
    num_channels: int
    """Values per voxel."""
    scale: Scale
    """Which scale, with the chunk size that is read."""
    mag: Mag = MAG_1
    """Its mag; mag 1 where the scale has none."""
    opened: Opened | None = None
    """What was there when it was opened; None where nobody looks, as for a volume that is being written, or a remote one."""
    part: BoundingBox | None = None
    """The part of it that counts; None for all."""

    @property
    def extent(self) -> BoundingBox:
        """All of the scale, from voxel 0 on [voxels of the scale]."""
        return BoundingBox((0, 0, 0), self.scale.size, self.mag)

    @property
    def box(self) -> BoundingBox:
        """Where it has data [voxels of the scale]."""
        return self.extent if self.part is None else self.part

    def cropped(self, box: BoundingBox) -> PrecomputedVolume:
        """Give a part of the volume; reading reaches beyond it as before."""
        return replace(self, part=box)

    @property
    def origin(self) -> Vec3:
        """The absolute voxel at which its coordinates start; may be negative."""
        return self.scale.voxel_offset

    @property
    def chunk_shape(self) -> Vec3:
        """A chunk along x, y, z [voxels]."""
        return self.scale.chunk_size

    @property
    def shard_shape(self) -> Vec3:
        """What is stored together along x, y, z [voxels].

        That is a shard, or without sharding a group of chunks of about 64 MiB; where shards are no boxes, all of the volume.
        """
        x, y, z = (cells * edge for cells, edge in zip(self.shard_cells, self.chunk_shape, strict=True))
        return x, y, z

    @property
    def shard_cells(self) -> Vec3:
        """What is stored together along x, y, z [chunks]."""
        return group_cells(self.scale, self.dtype.itemsize * self.num_channels)

    @property
    def codec(self) -> ChunkCodec:
        """How chunks are encoded."""
        return ChunkCodec.of_scale(self.scale, self.dtype, self.num_channels)

    @property
    def name(self) -> str:
        """The scale's folder or URL."""
        return self.store.path_of(self.scale.key)

    @property
    def folder(self) -> str:
        """The scale's folder or URL."""
        return self.name

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the scale is another one; of a remote volume, when ``info`` says so."""
        place = None if self.opened is None else self.opened.folder
        return ("precomputed", self.store.url, self.scale, repr(self.scale.entry), self.dtype.str, self.num_channels, self.box, place)

    @property
    def content_token(self) -> tuple[Any, ...]:
        """Values that change when the scale is stored in another way, wherever it is."""
        return self.scale, self.dtype.str, self.num_channels

    @property
    def is_regular(self) -> bool:
        """Chunks have any length, and grids begin anywhere."""
        return False

    @property
    def lengths_nm(self) -> Lengths:
        """Edge lengths of its voxels [nm]."""
        return self.scale.resolution

    def count_files(self) -> tuple[int, int] | None:
        """Count the files of chunks or shards, and their bytes; None of a remote volume."""
        return file_sizes(self.folder, self.scale) if self.store.is_local else None

    # -------------------------------------------------------------------------------------------- voxels

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array with voxels, each chunk decoded once."""
        asked = BoundingBox(topleft, (out.shape[1], out.shape[2], out.shape[3]), self.mag)
        inside = asked.intersection(self.extent)
        ranges = cell_range(inside, self.chunk_shape)
        seen = np.zeros([len(cells) for cells in ranges], np.bool_)
        nonzero = found = 0
        for cell, chunk in self.stored_chunks(ranges):
            found += 1
            if self._place(cell, chunk, out, asked, first_channel):
                nonzero += 1
                seen[tuple(n - cells.start for n, cells in zip(cell, ranges, strict=True))] = True
        if found < seen.size:
            self.check_absence()
        elif self.opened is not None and folder_state(self.store, self.scale.key) != self.opened.folder:
            self.check_absence()  # files of other chunks may have the same names
        if nonzero:
            self._fill_zeros(out, asked, inside, ranges, seen)
        elif fill_zeros:
            out[...] = 0
        return nonzero

    def _fill_zeros(self, out: npt.NDArray[Any], asked: BoundingBox, inside: BoundingBox, ranges: Sequence[range], seen: npt.NDArray[np.bool_]) -> None:
        """Fill what no chunk filled: the places of absent and zero chunks, and what lies beyond the box."""
        for cell in (np.argwhere(~seen) + [one.start for one in ranges]).tolist():
            where, _ = _overlap(cell, self.chunk_shape, self.scale.chunk_shape_at((cell[0], cell[1], cell[2])), asked)
            out[(slice(None), *where)] = 0
        for axis in range(3):
            low, high = inside.topleft[axis] - asked.topleft[axis], inside.bottomright[axis] - asked.topleft[axis]
            for beyond in (slice(0, low), slice(high, None)):
                out[(slice(None),) * (axis + 1) + (beyond,)] = 0

    def _place(self, cell: Vec3, chunk: StoredChunk, out: npt.NDArray[Any], asked: BoundingBox, first_channel: int) -> bool:
        """Decode a chunk into its place in an array, straight where its encoding can do that; False where all of it is zero, and perhaps not in its place."""
        codec, shape = self.codec, self.scale.chunk_shape_at(cell)
        source = f"{chunk.path}: chunk {cell}"
        where, part = _overlap(cell, self.chunk_shape, shape, asked)
        place = out[(slice(None), *where)]
        if codec.encoding == _DIRECT and len(out) == codec.num_channels:
            corner = [n * edge - first for n, edge, first in zip(cell, self.chunk_shape, asked.topleft, strict=True)]
            codec.decode_into(chunk.data, shape, out, corner, source, chunk.offset)
            return not is_zero(place)
        voxels = codec.decode(chunk.data, shape, source, chunk.offset)[(slice(first_channel, first_channel + len(out)), *part)]
        if is_zero(voxels):
            return False
        copy_into(voxels, place)
        return True

    @property
    def decodes_chunks(self) -> bool:
        """Chunks are best used one by one."""
        return True

    def decoded_chunks(self, box: BoundingBox, memory: npt.NDArray[Any]) -> Iterator[tuple[Vec3, npt.NDArray[Any]]]:
        """Decode the chunks that a box touches, one by one."""
        ranges = cell_range(box.intersection(self.extent), self.chunk_shape)
        codec, found = self.codec, 0
        for (x, y, z), chunk in self.stored_chunks(ranges):
            found += 1
            nx, ny, nz = shape = self.scale.chunk_shape_at((x, y, z))
            source = f"{chunk.path}: chunk {(x, y, z)}"
            if codec.encoding == _DIRECT:
                voxels = memory[:, :nx, :ny, :nz]
                codec.decode_into(chunk.data, shape, voxels, (0, 0, 0), source, chunk.offset)
            else:
                voxels = codec.decode(chunk.data, shape, source, chunk.offset)
            if not is_zero(voxels):
                yield (x * self.chunk_shape[0], y * self.chunk_shape[1], z * self.chunk_shape[2]), voxels
        if found < math.prod(map(len, ranges)):
            self.check_absence()

    def stored_chunks(self, ranges: Sequence[range]) -> Iterator[tuple[Vec3, StoredChunk]]:
        """Read the stored chunks of a box of cells, still encoded but no more compressed than their encoding is; those that are absent are left out."""
        return self._alone(ranges) if self.scale.sharding is None else self._sharded(ranges)

    # -------------------------------------------------------------------------------------------- chunks that are files

    def _alone(self, ranges: Sequence[range]) -> Iterator[tuple[Vec3, StoredChunk]]:
        """Read chunks that are files, several at once where that is better."""
        x_names, y_names, z_names = ({n: span_name(self.scale, n, axis) for n in cells} for axis, cells in enumerate(ranges))
        every = (((x, y, z), f"{self.scale.key}/{x_names[x]}_{y_names[y]}_{z_names[z]}") for z in ranges[2] for y in ranges[1] for x in ranges[0])
        largest = largest_nbytes(self.codec, self.chunk_shape)
        at_once = max(1, min(self.store.files_at_once, _HELD_NBYTES // largest))
        while some := list(islice(every, at_once)):
            for (cell, _), (name, data) in zip(some, self._read_files([name for _, name in some], largest), strict=True):
                if data is not None:
                    path = self.store.path_of(name)
                    yield cell, StoredChunk(0, decompress_file(data, name, path, largest, self.codec, self.scale.chunk_shape_at(cell)), path, 0)

    def _read_files(self, names: list[str], largest: int) -> list[tuple[str, bytes | None]]:
        """Read files under the first of their possible names that is there: a chunk may be compressed as a whole, which its ending says."""
        key = (self.store.opening, self.scale.key)
        known = _suffixes.get(key)
        suffixes = SUFFIXES if known is None else (known, *(suffix for suffix in SUFFIXES if suffix != known))
        if known is not None and not self.store.is_local:
            suffixes = tuple(dict.fromkeys((known, "")))  # a request for each other ending would take long, and writers use one
        found: list[tuple[str, bytes | None]] = [(name, None) for name in names]
        for suffix in suffixes:
            missing = [n for n, (_, data) in enumerate(found) if data is None]
            if not missing:
                break
            for n, data in zip(missing, self.store.read_whole([names[n] + suffix for n in missing], largest_file(largest)), strict=True):
                if data is not None:
                    found[n] = names[n] + suffix, data
                    if suffix != known:
                        _suffixes.put(key, suffix)
        return found

    # -------------------------------------------------------------------------------------------- chunks in shards

    def _sharded(self, ranges: Sequence[range]) -> Iterator[tuple[Vec3, StoredChunk]]:
        """Read chunks that are in shards, shard by shard."""
        for some in _some_cells(ranges, self.scale.shard_cells):
            yield from self._read_shards(some)

    def _read_shards(self, cells: npt.NDArray[np.int64]) -> Iterator[tuple[Vec3, StoredChunk]]:
        """Read some chunks, shard by shard."""
        sharding, chunks = self.scale.sharding, self.scale.grid
        assert sharding is not None
        ids = compressed_morton.encode(cells, chunks)
        shards, minishards = sharding.places(ids)
        order = np.argsort(shards, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            shard = open_shard(self.store, self.scale.key, sharding, int(shards[members[0]]), chunks)
            if shard is None:
                continue
            try:
                for chunk in shard.read_chunks(ids[members], minishards[members], members, self.store):
                    x, y, z = cells[chunk.number].tolist()
                    yield (x, y, z), self._unpacked(chunk, (x, y, z))
            finally:
                close_shard(shard)

    def _unpacked(self, chunk: StoredChunk, cell: Vec3) -> StoredChunk:
        """Undo the compression of chunks of a shard."""
        assert self.scale.sharding is not None
        shape = self.scale.chunk_shape_at(cell)
        if self.scale.sharding.data_encoding == "raw":
            return chunk
        largest = largest_nbytes(self.codec, shape)
        data = decompress_gzip(chunk.data, largest, f"{chunk.path}: chunk {cell}", chunk.offset)
        return chunk._replace(data=data)

    # -------------------------------------------------------------------------------------------- what is stored

    def check_absence(self) -> None:
        """Make sure that absent files are zeros, and not out of reach or part of another scale by now.

        Of a remote volume, and of one that is being written, absent files are taken for zeros.
        """
        if not self.store.is_local:
            return
        if files.islink(self.folder) and not files.exists(self.folder):
            raise MissingError(f"{self.folder}: a symbolic link to a folder that is not there")
        if self.opened is None:
            return
        now = look(self.store, self.scale.key)
        if now is None:
            raise MissingError(f"{self.store.path_of(FILE_NAME)}: not found: the volume is gone or its file system is not mounted")
        if now.folder != self.opened.folder and self.opened.folder is not None:
            raise ReplacedError(f"{self.folder}: was replaced since it was opened; open it anew")
        if now.info != self.opened.info and not self.is_listed_in(now):
            raise ReplacedError(f"{self.folder}: {FILE_NAME} describes another scale since it was opened; open it anew")

    def is_listed_in(self, now: Opened) -> bool:
        """Tell whether the ``info`` that is there now has this scale as it is; others come and go."""
        info = info_of(self.store, now.info)
        if (info.dtype, info.num_channels) != (self.dtype, self.num_channels):
            return False
        alike = [scale for scale in info.scales if scale.key == self.scale.key and self.chunk_shape in scale.chunk_sizes]
        wanted = replace(self.scale, chunk_sizes=(), options={})
        return any(replace(scale, chunk_size=self.chunk_shape, chunk_sizes=(), options={}) == wanted for scale in alike)

    def is_unchanged(self) -> bool:
        """Tell whether what said that the scale is the one that was opened has not changed since."""
        return self.opened is not None and look(self.store, self.scale.key) == self.opened

    def is_current(self) -> bool:
        """Tell whether what is there is still the scale that was opened; nobody knows of a remote one, which is taken to be."""
        try:
            self.check_absence()
        except (MissingError, ReplacedError):
            return False
        return True

    def shard_exists(self, index: Vec3) -> bool:
        """Tell whether a shard is stored, or any chunk of a group; those of a remote volume are taken to be."""
        return not self.store.is_local or bool(len(self._states([index])))

    def shard_path(self, index: Vec3) -> str:
        """Name a shard, or the first chunk of a group; the folder where shards are no boxes."""
        return self.store.path_of(shard_name(self.scale, self.shard_cells, index))

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Tell which cells of a grid have voxels of the box in a stored chunk or shard, by one listing of the folder; all, of a remote volume."""
        found = cell_map(self.box, cell_shape, self.name, fill=not self.store.is_local)
        if not self.store.is_local:
            return found
        boxes = stored_boxes(self.folder, self.scale)
        if not len(boxes):
            self.check_absence()
        mark_occupied(found, boxes, self.scale, self.box, cell_shape)
        return found

    def shard_states(self, box: BoundingBox) -> States:
        """Look at the stored shards, or groups of chunks, that a part of the volume touches; nothing is known of those of a remote volume."""
        return self._states(grid.cells(box.intersection(self.box), self.shard_shape))

    def _states(self, indices: Iterable[Vec3]) -> States:
        if not self.store.is_local:
            return np.zeros((0, 5), np.int64)
        return states_of(self.folder, self.scale, self.shard_cells, indices)

    def stored_states(self) -> States:
        """Look at all stored shards or groups of chunks, by one listing of the folder; nothing is known of those of a remote volume."""
        if not self.store.is_local:
            return np.zeros((0, 5), np.int64)
        states = all_states(self.folder, self.scale, self.shard_cells)
        if self.part is None:
            return states
        touched = cell_range(self.box, self.shard_shape)
        return states[np.all([np.isin(states[:, axis], list(cells)) for axis, cells in enumerate(touched)], axis=0)]

    def has_shards(self) -> bool:
        """Tell whether any chunk or shard is stored; of a remote volume it is taken to be so."""
        return not self.store.is_local or has_files(self.folder, self.scale)


def _some_cells(ranges: Sequence[range], shard_cells: Vec3 | None) -> Iterator[npt.NDArray[np.int64]]:
    """Give the cells of a box by parts that are no larger than memory allows, each of whole shards where these are small, shape (n, 3)."""
    edge = shard_cells or (64, 64, 64)
    steps = [max(n, 1) for n in edge]
    while steps[0] * steps[1] * steps[2] < _CELLS_AT_ONCE and any(step < len(cells) for step, cells in zip(steps, ranges, strict=True)):
        axis = min(range(3), key=lambda n: steps[n] if steps[n] < len(ranges[n]) else 1 << 62)
        steps[axis] *= 2
    parts = [
        [range(max(cells.start, first), min(cells.stop, first + step)) for first in range(cells.start // step * step, cells.stop, step)]
        for cells, step in zip(ranges, steps, strict=True)
    ]
    for z, y, x in product(*parts[::-1]):
        yield np.stack([axis.ravel(order="F") for axis in np.meshgrid(x, y, z, indexing="ij")], axis=1)


def _overlap(cell: Sequence[int], chunk_shape: Vec3, shape: Sequence[int], asked: BoundingBox) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Give the place of a chunk's voxels in an array, and of the array's voxels in the chunk."""
    where, part = [], []
    for n, edge, length, first, size in zip(cell, chunk_shape, shape, asked.topleft, asked.size, strict=True):
        corner = n * edge - first
        low, high = max(corner, 0), min(corner + length, size)
        where.append(slice(low, high))
        part.append(slice(low - corner, high - corner))
    return tuple(where), tuple(part)
