"""Stored array of any format, composed of a store, a naming scheme, a grid of chunks, a layout of
chunks in files, and a codec.

All formats share this implementation of reading. Boxes are absolute; only the grid knows the voxel
at which the array starts.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from wkwdask.errors import FormatError, MissingError, ReplacedError
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox, counted_from, moved
from wkwdask.geometry.grid import cell_range
from wkwdask.geometry.vectors import plus, times
from wkwdask.model.codec import clip
from wkwdask.model.layout import parts_of_box
from wkwdask.model.naming import FileVariant
from wkwdask.model.states import summed_states
from wkwdask.model.volume import RandomAccessVolume, relative_to
from wkwdask.plans.cells import SparseCells, cell_map

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.chunk_grid import ChunkGrid, Ranges, Vec4
    from wkwdask.model.codec import ChunkCodec
    from wkwdask.model.layout import ShardLayout
    from wkwdask.model.levels import Lengths
    from wkwdask.model.naming import FolderFilter, KeyNaming, ListedFile
    from wkwdask.model.states import States
    from wkwdask.model.store import Store
    from wkwdask.plans.cells import CellMap


_FIRST_TRIED = 16  # files asked for by name before folders are listed
_SAMPLED_FILES = 256  # files whose sizes are averaged
_REMOTE_THREADS = 8  # that decode; each holds files that were read ahead
# for more files, list folders: one listing replaces a request for each missing file
_TRIED_FILES = 1 << 10


class Identity(Protocol):
    """Identity of a stored array: whether it is still the array that was opened."""

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when another array takes its place."""

    def content(self, box: BoundingBox) -> tuple[Any, ...] | None:
        """Return values that identify the content of a box at any location; None if its place is
        part of its identity."""

    def at(self, store: Store) -> Self:
        """Return the identity of the array in another folder."""

    def check(self, *, has_absent: bool) -> None:
        """Raise ReplacedError or MissingError if the array was replaced or is out of reach;
        ``has_absent`` is True if a file was missing."""

    def is_unchanged(self) -> bool:
        """Return whether the records of the array have not changed."""

    @property
    def record(self) -> tuple[int, int] | None:
        """Size and modification time of the record, None if unknown."""


class BoxCodec:
    """Layout that decodes whole boxes, because this is faster, or because the codec is opaque.

    Not an abstract class: asking for one of these takes ten times as long.
    """

    __slots__ = ()

    @abstractmethod
    def read_box(
        self, array: StoredArray, out: npt.NDArray[Any], low: Vec4, *, fill_zeros: bool
    ) -> int:
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

    cells: npt.NDArray[np.int64]
    """Chunks (x, y, z) in the order of files and Morton codes, shape (n, 3)."""
    cuts: npt.NDArray[np.int64]
    """First of the boxes of each chunk in ``boxes``, and the end of the last, shape (n + 1,)."""
    boxes: npt.NDArray[np.int64]
    """Indices of boxes, chunk by chunk."""
    outs: list[npt.NDArray[Any]]
    """Part of each box inside the stored array."""
    lows: npt.NDArray[np.int64]
    """First voxel (x, y, z) of each of these parts, counted from the first stored voxel, shape (m,
    3)."""
    is_clipped: bool
    """Whether any box reaches beyond the stored array."""

    @property
    def addresses(self) -> npt.NDArray[np.int64]:
        """Address of each box in memory."""
        return np.array([out.__array_interface__["data"][0] for out in self.outs], np.int64)

    @property
    def shapes(self) -> npt.NDArray[np.int64]:
        """Shape (x, y, z) of each box, shape (m, 3)."""
        return np.array([out.shape[1:] for out in self.outs], np.int64)

    def part(self, first: int, last: int) -> ChunkPairs:
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
    part: BoundingBox | None = None
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
        return self.extent if self.part is None else self.part

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
        return replace(self, part=box)

    def moved(self, shift: Vec3) -> StoredArray:
        if shift == (0, 0, 0):
            return self
        return replace(
            self,
            grid=replace(self.grid, origin=plus(self.grid.origin, shift)),
            part=None if self.part is None else moved(self.part, shift),
        )

    # --------------------------------------------------------------------------------------------
    # voxels

    def read_into(
        self,
        out: npt.NDArray[Any],
        topleft: Vec3,
        first_channel: int = 0,
        *,
        fill_zeros: bool = True,
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
        if isinstance(self.layout, BoxCodec) and out.size and min(*wanted, *rest) >= 0:
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
        self, out: npt.NDArray[Any], low: Vec4, high: Sequence[int], *, fill_zeros: bool
    ) -> int:
        """Fill an array that lies inside the stored one, decoding each chunk once."""
        if isinstance(self.layout, BoxCodec):
            return self.layout.read_box(self, out, low, fill_zeros=fill_zeros)
        grid, ranges = self.grid, self.grid.cells(low, high)
        seen = np.zeros([len(cells) for cells in ranges], np.bool_)
        try:
            num_stored = self._decode_chunks(out, low, ranges, seen)
        except FormatError:
            # raises ReplacedError if these are files of another array
            self.identity.check(has_absent=True)
            raise
        self.identity.check(has_absent=num_stored < seen.size)
        # with a fill value other than 0, missing chunks are not zero
        has_fill = bool(self.fill) and num_stored < seen.size
        if has_fill or seen.any():
            for cell in (np.argwhere(~seen) + [cells.start for cells in ranges]).tolist():
                corner = [n * edge - a for n, edge, a in zip(cell, grid.chunk, low, strict=True)]
                out[clip(corner, grid.chunk, out.shape)[0]] = self.fill
        elif fill_zeros:
            out[...] = 0
        return int(seen.sum()) + has_fill

    def _decode_chunks(
        self, out: npt.NDArray[Any], low: Vec4, ranges: Ranges, seen: npt.NDArray[np.bool_]
    ) -> int:
        """Decode the stored chunks of a box into an array.

        Marks the chunks that were written in ``seen`` (all-zero chunks only with a fill value) and
        returns the number of stored chunks.
        """
        grid, codec, num_stored = self.grid, self.codec, 0
        for cell, data, path, offset in self.layout.chunks(self, ranges):
            num_stored += 1
            corner = [n * edge - a for n, edge, a in zip(cell, grid.chunk, low, strict=True)]
            shape = grid.shape_at(cell)
            if not codec.decode_into(data, shape, out, corner, self.source_of(path, cell), offset):
                if not self.fill:
                    continue
                out[clip(corner, shape, out.shape)[0]] = 0
            seen[tuple(n - cells.start for n, cells in zip(cell, ranges, strict=True))] = True
        return num_stored

    def source_of(self, path: str, cell: Vec4) -> str:
        """Name a stored chunk in errors."""
        return f"{path}: chunk {cell[1:]}" if self.layout.names_chunks else path

    def decoded_chunks(
        self, box: BoundingBox, memory: npt.NDArray[Any]
    ) -> Iterator[tuple[Vec3, npt.NDArray[Any]]]:
        """Decode the chunks that a box touches one by one, so that each is used while it is in the
        CPU cache.

        Yields the first voxel and the voxels (c, x, y, z) of each chunk, valid until the next one.
        Missing and all-zero chunks are omitted; chunks at the end of the array may be shorter.
        ``memory`` has the shape of one chunk and may be used.
        """
        assert self.decodes_chunks
        grid, codec, num_stored = self.grid, self.codec, 0
        box = box.intersection(self.extent)
        low, high = (
            (c, *(a - o for a, o in zip(corner, grid.origin, strict=True)))
            for c, corner in ((0, box.topleft), (grid.size[0], box.bottomright))
        )
        ranges = grid.cells(low, high)
        for cell, data, path, offset in self.layout.chunks(self, ranges):
            num_stored += 1
            voxels = codec.decode_chunk(
                data, grid.shape_at(cell), memory, self.source_of(path, cell), offset
            )
            if voxels is not None:
                yield plus(grid.origin, times(cell[1:], grid.chunk[1:])), voxels
        self.identity.check(has_absent=num_stored < math.prod(map(len, ranges)))

    @property
    def max_threads(self) -> int:
        """Largest useful number of threads for one read. Remote files are read ahead on other
        threads, and layouts that read boxes decode on these too."""
        return (
            1 << 10
            if not self.store.is_remote
            else 1
            if isinstance(self.layout, BoxCodec)
            else _REMOTE_THREADS
        )

    @property
    def decodes_chunks(self) -> bool:
        """Whether :meth:`decoded_chunks` can be used, and is faster than decoding into a larger
        box."""
        return (
            self.codec.decodes_chunks
            and self.grid.chunk[0] == self.grid.size[0]
            and self.channels is None
            and not self.fill
        )

    # --------------------------------------------------------------------------------------------
    # stored files

    @property
    def can_list(self) -> bool:
        """Whether files can be listed; if not, all are assumed to exist."""
        return self.naming is not None and self.store.can.lists

    def with_listing(self) -> StoredArray:
        """Return the array with a store that can list the files of the box; the names of files must
        be known."""
        return self.at(self.store.with_listing(self._possible_names()))

    def _possible_names(self) -> Iterator[tuple[str, ...]]:
        """Yield all names that each file of the box may have."""
        assert self.naming is not None
        if self.grid.file is not None:
            yield from (
                self.naming.names(file) for file, _ in self.naming.keys(self._files(self.box))
            )
            return
        # shards are no boxes, so each chunk is asked for its shard
        cells = self.grid.cells((0, 0, 0, 0), self.grid.size)
        yield from (
            (key,)
            for key in {
                key
                for part in parts_of_box(cells, self.grid)
                for key, _ in self.naming.locate(part, self.grid)
            }
        )

    def without_listing(self) -> StoredArray:
        """Return the array without the list of its remote files, small to pickle."""
        return self if not self.store.is_remote else self.at(self.store.at(self.store.url))

    def listed(self, folder_filter: FolderFilter | None = None) -> Iterator[ListedFile]:
        """List the stored files that contain parts of the box."""
        assert self.naming is not None
        return self.naming.list_files(self.store, self._files(self.box), folder_filter)

    def _files(self, box: BoundingBox) -> Ranges:
        """Return the files that contain parts of a box; all files if their chunks form no box."""
        grid, counts = self.grid, self.grid.file_counts
        if grid.file is None:
            c, x, y, z = map(range, counts)
            return c, x, y, z
        inside = box.intersection(self.extent)
        touched = cell_range(counted_from(inside, grid.origin), grid.file[1:])
        return range(counts[0]), *touched

    def nested_names(self, box: BoundingBox) -> Iterator[str]:
        """Yield the names of the files that contain parts of a box, if they lie in folders below
        that of the array."""
        if self.naming is not None and "/" in self.naming.key((0, 0, 0, 0)):
            yield from (name for _, name in self.naming.keys(self._files(box)))

    def is_current(self) -> bool:
        try:
            self.identity.check(has_absent=True)
        except (MissingError, ReplacedError):
            return False
        return True

    def has_shards(self) -> bool:
        """Return whether any file is stored; always True if files cannot be listed."""
        if not self.can_list:
            return True
        assert self.naming is not None
        if self.grid.file is not None:
            # Ask for a few files by name first: a dense array has one of them, and no large folder
            # needs to be listed.
            c, x, y, z = (cells[:_FIRST_TRIED] for cells in self._files(self.box))
            first = islice(self.naming.keys((c, x, y, z)), _FIRST_TRIED)
            if any(True for file, _ in first for _ in self.naming.file_states(self.store, file)):
                return True
        return next(self.listed(), None) is not None

    def count_files(self) -> tuple[int, int] | None:
        """Return number and estimated size of the files of the box, None if they cannot be
        listed."""
        if not self.can_list:
            return None
        count = 0
        sizes: list[int] = []
        for file in self.listed():
            count += 1
            if len(sizes) < _SAMPLED_FILES:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    sizes.append(file.entry.stat().st_size)
        return count, sum(sizes) * count // max(1, len(sizes))

    def shard_path(self, index: Vec3) -> str:
        """Return the path of the file with the first voxel of a shard, or of the array if names are
        unknown."""
        if self.naming is None or self.grid.file is None:
            return self.name
        axes = zip(index, self.grid.unit, self.grid.origin, self.grid.file[1:], strict=True)
        x, y, z = (max(0, (n * edge - o) // edge) * edge // file for n, edge, o, file in axes)
        return self.store.path_of(self.naming.key((0, x, y, z)))

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Return the cells with voxels of the box in a stored file, by one listing; all cells if
        files cannot be listed."""
        is_known = self.can_list and not self.fill
        occupied = cell_map(self.box, cell_shape, self.name, fill=not is_known)
        if not is_known:
            return occupied
        grid = self.grid
        if grid.file is None:
            if self.has_shards():
                occupied[...] = True
            else:
                self.identity.check(has_absent=True)
            return occupied
        cells_of = lru_cache(maxsize=None)(partial(self._cells_of, cell_shape))

        def has_unmarked_cells(known: Mapping[str, int]) -> bool:
            """Return whether a folder can contain files of unmarked cells: most folders of a dense
            array need not be listed."""
            if isinstance(occupied, SparseCells):
                return True
            return not occupied[
                cells_of(0, known.get("x")),
                cells_of(1, known.get("y")),
                cells_of(2, known.get("z")),
            ].all()

        for (_, x, y, z), _, _ in self.listed(has_unmarked_cells):
            occupied[cells_of(0, x), cells_of(1, y), cells_of(2, z)] = True
        if not occupied.any():
            self.identity.check(has_absent=True)
        return occupied

    def _cells_of(self, cell_shape: Vec3, axis: int, file: int | None) -> slice:
        """Return the cells, along one axis, that a file's voxels inside the box touch; all cells
        without a file."""
        if file is None:
            return slice(None)
        assert self.grid.file is not None
        low, high, cell, edge = (
            self.box.topleft[axis],
            self.box.bottomright[axis],
            cell_shape[axis],
            self.grid.file[axis + 1],
        )
        corner = file * edge + self.grid.origin[axis]
        return slice(
            max(low, corner) // cell - low // cell,
            -(-min(high, corner + edge) // cell) - low // cell,
        )

    def shard_states(self, box: BoundingBox) -> States:
        """Return the states of stored shards that a box touches; a file has one row for each shard
        that contains a part of it."""
        units = self._units_in(box.intersection(self.box))
        if not self.can_list:
            state = self.identity.record if self.store.can.states else None
            rows = (
                [(x, y, z, *state) for z in units[2] for y in units[1] for x in units[0]]
                if state is not None
                else []
            )
            return self._moved(np.array(rows, np.int64).reshape(-1, 5))
        files = self._files_of_units(units)
        return self._states(
            self._listed_file_states(files)
            if math.prod(map(len, files)) > _TRIED_FILES
            else self._file_states(files)
        )

    def stored_states(self) -> States:
        """Return the states of all stored shards that the bounding box touches, by one listing."""
        if not self.can_list:
            return self.shard_states(self.box)
        return self._states(
            self._listed_file_states(self._files_of_units(self._units_in(self.box)))
        )

    def files_of_shard(self, shard: Vec3) -> list[tuple[Vec4, int]]:
        """List the stored files of a shard, given by its index counted from the array's first
        voxel, each with the index of its name."""
        assert self.naming is not None
        files = relative_to(self, self.grid.origin)._files_of_units(
            [range(n, n + 1) for n in shard]
        )
        return [
            (listed.file, listed.variant) for listed in self.naming.list_files(self.store, files)
        ]

    def _units_in(self, box: BoundingBox) -> tuple[range, range, range]:
        """Return the groups of files that a box touches, counted from the array's first voxel."""
        return cell_range(counted_from(box, self.grid.origin), self.grid.unit)

    def _files_of_units(self, units: Sequence[range]) -> Ranges:
        edges = zip(units, self.grid.unit, self.grid.origin, strict=True)
        low, high = zip(
            *((part.start * edge + o, part.stop * edge + o) for part, edge, o in edges), strict=True
        )
        return self._files(BoundingBox.from_corners(low, high, self.mag))

    def _file_states(self, files: Ranges) -> Iterator[tuple[Vec4, FileVariant]]:
        """Yield the states of files, asking for each by name."""
        if self.grid.file is None:
            yield from self._listed_file_states(files)
            return
        naming = self.naming
        assert naming is not None
        indices = [(c, x, y, z) for z, y, x, c in product(*files[::-1])]
        if not self._has_variants:
            states = self.store.states(map(naming.key, indices))
            yield from (
                (file, FileVariant(0, *state))
                for file, state in zip(indices, states, strict=True)
                if state is not None
            )
            return
        yield from naming.states_of_files(self.store, indices)

    @property
    def has_single_file_shards(self) -> bool:
        """Whether each shard is a single file with one possible name."""
        grid = self.grid
        return (
            grid.file is not None
            and grid.file_counts[0] == 1
            and grid.unit == grid.file[1:]
            and not self._has_variants
        )

    @property
    def _has_variants(self) -> bool:
        """Whether a file has several possible names."""
        return self.naming is not None and len(self.naming.names((0, 0, 0, 0))) > 1

    def _listed_file_states(self, files: Ranges) -> Iterator[tuple[Vec4, FileVariant]]:
        """Yield the states of files as their folders list them."""
        assert self.naming is not None
        for file, entry, variant in self.naming.list_files(self.store, files):
            try:
                status = entry.stat()
            except FileNotFoundError:  # removed meanwhile
                continue
            yield file, FileVariant(variant, status.st_size, status.st_mtime_ns)

    def _states(self, file_states: Iterator[tuple[Vec4, FileVariant]]) -> States:
        """Return one row per shard: size and time of its file, or a digest of the states of its
        files."""
        rows = np.array([(*file, *variant) for file, variant in file_states], np.int64).reshape(
            -1, 7
        )
        if self.has_single_file_shards:
            return self._moved(rows[:, [1, 2, 3, 5, 6]])
        units: npt.NDArray[np.int64] = np.zeros_like(rows[:, 1:4])
        if self.grid.file is not None:
            units[...] = rows[:, 1:4] * self.grid.file[1:] // self.grid.unit
        return self._moved(summed_states(units, rows))

    def states_of_shard(self, unit: Vec3) -> list[tuple[Vec4, FileVariant]]:
        """Return the states of the stored files of a shard, given by its index counted from the
        array's first voxel."""
        return list(self._file_states(self._files_of_units([range(n, n + 1) for n in unit])))

    def group_state(self, unit: Vec3) -> tuple[int, int, int]:
        """Return number and size of the files of a shard, and the digest of a group or the time of
        a single file, as :meth:`stored_states` has them."""
        file_states = self.states_of_shard(unit)
        states = self._states(iter(file_states))
        return (
            len(file_states),
            sum(variant.nbytes for _, variant in file_states),
            int(states[0, 4]) if file_states else 0,
        )

    def _moved(self, states: States) -> States:
        """Convert indices counted from the array's first voxel to those of the absolute shards that
        the files touch."""
        for axis, (edge, origin) in enumerate(zip(self.grid.unit, self.grid.origin, strict=True)):
            # Without a common origin a file lies in two shards of the absolute grid, and has a row
            # for each:
            #     absolute grid   |    0    |    1    |    2
            #     files               |    0    |    1    |
            first, rest = divmod(origin, edge)
            if rest:
                states = np.repeat(states, 2, axis=0)
                states[1::2, axis] += 1
            states[:, axis] += first
        return states
