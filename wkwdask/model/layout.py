"""Layout of the chunks of a stored array in files: one chunk per file, or many in a shard."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from wkwdask.errors import FormatError, MissingError
from wkwdask.model.codec import max_file_nbytes
from wkwdask.model.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wkwdask.array_types import BoolArray, IntArray, UintArray
    from wkwdask.model.chunk_grid import ChunkGrid, Ranges, Vec4
    from wkwdask.model.codec import ChunkCodec
    from wkwdask.model.naming import KeyNaming
    from wkwdask.model.store import Store, StoredFile
    from wkwdask.model.writing.file_buffer import FileBuffer

_AHEAD_NBYTES = 64 << 20  # of remote files that are read ahead
_LARGEST_AHEAD_NBYTES = 1 << 30  # of these, if each has the largest size that the codec allows
_CELLS_AT_ONCE = 1 << 16  # chunks that are located together
_REMOTE_BATCHES = 8  # concurrent requests
# chunks that are located together if shards form no boxes (precomputed with a hash)
_HASHED_CELLS = (1, 64, 64, 64)
_FEW_CELLS = 64  # chunks up to which looking up each of them is faster than operations of arrays


class ChunkSource(Protocol):
    """Part of a stored array that a layout reads chunks from."""

    @property
    def store(self) -> Store: ...

    @property
    def grid(self) -> ChunkGrid: ...

    @property
    def naming(self) -> KeyNaming | None: ...

    @property
    def codec(self) -> ChunkCodec: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Slab(NamedTuple):
    """Some z of an uncompressed chunk."""

    first: int
    """First z in the chunk."""
    end: int
    """End of the z in the chunk."""

    @classmethod
    def of(
        cls, array: ChunkSource, cell: Vec4, z: tuple[int, int], place: tuple[int, int]
    ) -> tuple[Self, tuple[int, int]] | None:
        """Return the slab of a chunk at a place in its file that holds the voxels from ``z[0]`` to
        ``z[1]``, and its own place; None if all of the chunk does, or only a whole one decodes."""
        shape, corner = array.grid.shape_at(cell), cell[3] * array.grid.chunk[3]
        nbytes = array.codec.slab_nbytes(shape)
        first, end = max(0, z[0] - corner), min(shape[3], z[1] - corner)
        if not nbytes or end - first == shape[3] or place[1] - place[0] != nbytes * shape[3]:
            return None
        return cls(first, end), (place[0] + first * nbytes, place[0] + end * nbytes)


class StoredChunk(NamedTuple):
    """Stored bytes of a chunk."""

    cell: Vec4
    """Index of the chunk."""
    data: bytes
    path: str
    """Path of the file."""
    offset: int
    """Offset in the file [bytes]."""


class InspectedShard(NamedTuple):
    """Places of the chunks of a shard whose tables may be damaged."""

    places: IntArray
    """First byte, end, and row in the cells that were looked up of each chunk with a valid place,
    shape (m, 3)."""
    is_stored: BoolArray
    """Mask of the cells that are not absent; all of them if the tables cannot be read."""
    faults: Sequence[tuple[Fault, int]] = ()
    """Faults of the tables, each with the row of its chunk, -1 if it has none."""
    is_intact: bool | None = None
    """Whether a checksum proves the places; None without one. If it contradicts the tables, no
    place is known."""


class ShardFile(Protocol):
    """New shard, to which chunks are appended in the order of their codes.

    For each batch of chunks the caller asks :meth:`start_stretch` how many of them follow each
    other without a gap, appends their bytes to ``buffer``, and reports their sizes to
    :meth:`record`. The layout writes what lies between stretches, such as encoded zeros or a
    minishard index.
    """

    buffer: FileBuffer

    def start_stretch(self, codes: UintArray) -> int:
        """Write everything before the first of some chunks, and return how many of them can be
        appended to ``buffer`` next."""

    def record(self, codes: UintArray, sizes: IntArray) -> None:
        """Record the sizes of chunks that were appended."""

    def finish(self) -> bytes:
        """Write everything after the last chunk, and return the bytes for the start of the file."""


class ShardLayout(ABC):
    """Base class of layouts of chunks in files."""

    __slots__ = ()

    is_sharded = True
    """Whether a file contains many chunks."""
    names_chunks = True
    """Whether errors name the chunk besides the file."""
    is_dense = False
    """Whether a file with any chunk also stores the all-zero chunks."""
    is_regular = False
    """Whether files are cubes with an edge of a power of two, aligned with voxel 0."""

    @abstractmethod
    def chunks_at(self, array: ChunkSource, cells: IntArray) -> Iterator[StoredChunk]:
        """Yield the stored chunks among some cells, shape (n, 4), in any order; missing chunks are
        omitted."""

    def chunks(self, array: ChunkSource, ranges: Ranges) -> Iterator[StoredChunk]:
        """Yield the stored chunks of a box of cells, in any order; missing chunks are omitted."""
        for cells in cell_batches(ranges, array.grid):
            yield from self.chunks_at(array, cells)

    def slabs(
        self, array: ChunkSource, ranges: Ranges, z: tuple[int, int]
    ) -> Iterator[tuple[StoredChunk, Slab | None]]:
        """Yield the stored chunks of a box of cells, of uncompressed ones perhaps only a slab with
        the voxels from ``z[0]`` to ``z[1]``; None for a whole chunk."""
        del z
        return ((chunk, None) for chunk in self.chunks(array, ranges))

    def source_of(self, path: str, cell: Vec4) -> str:
        """Name a stored chunk in errors."""
        return f"{path}: chunk {cell[1:]}" if self.names_chunks else path

    def codes(self, cells: IntArray) -> UintArray:
        """Return the code of chunks, shape (n, 4), in their files: files are written in ascending
        order of codes."""
        return np.arange(len(cells), dtype=np.uint64)

    def ordered_cells(self, low: Vec4, high: Vec4) -> tuple[UintArray, IntArray]:
        """Return codes and cells, shape (n, 4), of the chunks of a box inside one file, in
        ascending order of codes."""
        places = box_cells([*map(range, low, high)])
        codes = self.codes(places)
        order = np.argsort(codes, kind="stable")
        return codes[order], places[order]


class SingleFiles(ShardLayout):
    """Layout with one chunk per file."""

    __slots__ = ()

    is_sharded = False
    names_chunks = False

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def content(self, array: ChunkSource, cell: Vec4, data: bytes, path: str) -> bytes:
        """Return the encoded chunk that a file contains."""
        del array, cell, path
        return data

    def exact_nbytes(self, array: ChunkSource, cell: Vec4, path: str) -> int | None:
        """Return the size that the file of a chunk must have, None if it depends on the voxels."""
        del array, cell, path
        return None

    def chunks(self, array: ChunkSource, ranges: Ranges) -> Iterator[StoredChunk]:
        assert array.naming is not None
        return self._read(array, array.naming.keys(ranges))

    def chunks_at(self, array: ChunkSource, cells: IntArray) -> Iterator[StoredChunk]:
        naming = array.naming
        assert naming is not None
        return self._read(
            array, (((c, x, y, z), naming.key((c, x, y, z))) for c, x, y, z in cells.tolist())
        )

    def _read(
        self, array: ChunkSource, named_cells: Iterator[tuple[Vec4, str]]
    ) -> Iterator[StoredChunk]:
        store = array.store
        max_nbytes = max_file_nbytes(array.codec, array.grid.chunk)

        def read(named_cell: tuple[Vec4, str]) -> StoredChunk | None:
            cell, name = named_cell
            (data,) = store.read_whole([name], max_nbytes)
            return None if data is None else StoredChunk(cell, data, store.path_of(name), 0)

        return filter(None, store.map(read, named_cells, chunks_at_once(array, max_nbytes)))


class Shards(ShardLayout):
    """Layout with many chunks per file, and tables of their places, that can be written."""

    __slots__ = ()

    is_ordered = False
    """Whether chunks must be appended in the order of their codes."""

    @contextmanager
    def opened(self, store: Store, key: str, ahead_nbytes: int = 0) -> Iterator[StoredFile | None]:
        """Open a shard, None if it does not exist; see :meth:`wkwdask.model.store.Store.open`."""
        file = store.open(key, ahead_nbytes)
        if file is None:
            yield None
            return
        with file:
            yield file

    @abstractmethod
    def locate(self, file: StoredFile, cells: IntArray) -> IntArray:
        """Look up chunks, shape (n, 4), in the tables of a file.

        Returns
        -------
        ndarray of int64, shape (m, 3)
            First byte, end, and row in ``cells`` of each stored chunk.
        """

    @abstractmethod
    def codes(self, cells: IntArray) -> UintArray: ...

    def places_of(
        self, file: StoredFile, cells: Sequence[Vec4]
    ) -> Iterator[tuple[int, int] | None]:
        """Look up a few chunks as :meth:`locate` does; yield the first byte and end of each, None
        if it is absent."""
        for cell in cells:
            places = self.locate(file, np.array([cell], np.int64))
            yield (int(places[0, 0]), int(places[0, 1])) if len(places) else None

    def chunks(self, array: ChunkSource, ranges: Ranges) -> Iterator[StoredChunk]:
        if array.store.is_remote or math.prod(map(len, ranges)) > _FEW_CELLS:
            return super().chunks(array, ranges)
        return (chunk for chunk, _ in self._few_slabs(array, ranges, None))

    def slabs(
        self, array: ChunkSource, ranges: Ranges, z: tuple[int, int]
    ) -> Iterator[tuple[StoredChunk, Slab | None]]:
        if array.store.is_remote or math.prod(map(len, ranges)) > _FEW_CELLS:
            return super().slabs(array, ranges, z)
        return self._few_slabs(array, ranges, z)

    def _few_slabs(
        self, array: ChunkSource, ranges: Ranges, z: tuple[int, int] | None
    ) -> Iterator[tuple[StoredChunk, Slab | None]]:
        """Yield the chunks of a small local box, each read by itself, see :meth:`slabs`."""
        store, grid, naming = array.store, array.grid, array.naming
        assert naming is not None
        if not array.codec.slab_nbytes(grid.chunk):
            z = None
        every = [(c, i, j, k) for k, j, i, c in product(*ranges[::-1])]
        for key, cells in naming.by_file(every, grid).items():
            with self.opened(store, key) as file:
                if file is None:
                    continue
                for cell, place in zip(cells, self.places_of(file, cells), strict=True):
                    if place is None:
                        continue
                    part = None if z is None else Slab.of(array, cell, z, place)
                    slab, place = (None, place) if part is None else part
                    (data,) = _existing(file, file.read([place]))
                    yield StoredChunk(cell, data, file.name, place[0]), slab

    def inspect(self, file: StoredFile, cells: IntArray) -> InspectedShard:
        """Look up chunks like :meth:`locate`, but return faults of the tables instead of raising
        them."""
        try:
            places = self.locate(file, cells)
            return InspectedShard(places, np.isin(np.arange(len(cells)), places[:, 2]))
        except FormatError as error:
            fault = Fault("shard.index", file.name, str(error).removeprefix(f"{file.name}: "))
            return InspectedShard(
                np.zeros((0, 3), np.int64), np.ones(len(cells), np.bool_), [(fault, -1)]
            )

    def has_same_encoding(self, file: StoredFile) -> bool:
        """Return whether the chunks of an existing file are encoded like those of new files."""
        del file
        return True

    @abstractmethod
    def codes_per_file(self, grid: ChunkGrid) -> int:
        """Return the number of codes that chunks of a file can have."""

    @abstractmethod
    def new_shard(self, first: Vec4, grid: ChunkGrid, buffer: FileBuffer) -> ShardFile:
        """Start a shard whose first chunk is ``first``; ``buffer`` is the file to append to."""

    @property
    @abstractmethod
    def head_nbytes(self) -> int:
        """Size of the part at the start of a shard that is written last."""

    @abstractmethod
    def is_whole(self, file: StoredFile) -> bool:
        """Return whether a shard has complete tables, as :class:`ShardFile` writes them."""

    def without_zeros(self, file: StoredFile, places: IntArray) -> IntArray:
        """Omit stored all-zero chunks from the result of :meth:`locate`."""
        del file
        return places

    @abstractmethod
    def expected_nbytes(self, files: int, chunks: int) -> int:
        """Estimate the size of the tables of some files with some chunks."""

    def chunks_at(self, array: ChunkSource, cells: IntArray) -> Iterator[StoredChunk]:
        store, naming = array.store, array.naming
        assert naming is not None
        shards = list(naming.locate(cells, array.grid))
        at_once = _shards_at_once(array, max(len(members) for _, members in shards))

        def find(
            named_members: tuple[str, IntArray],
        ) -> tuple[ExitStack, StoredFile | None, IntArray]:
            key, members = named_members
            with ExitStack() as opened:
                file = opened.enter_context(
                    self.opened(store, key, _ahead_nbytes(array, cells, members))
                )
                places = (
                    np.zeros((0, 3), np.int64)
                    if file is None
                    else self.locate(file, cells[members])
                )
                return (
                    opened.pop_all(),
                    file,
                    np.column_stack([places[:, :2], members[places[:, 2]]]),
                )

        def stretches() -> Iterator[tuple[StoredFile, IntArray]]:
            for opened, file, places in store.map(find, shards, at_once):
                with opened:
                    yield from (
                        ()
                        if file is None
                        else ((file, stretch) for stretch in _stretches(places, store))
                    )

        def read(stretch: tuple[StoredFile, IntArray]) -> tuple[str, IntArray, bytes]:
            file, places = stretch
            (data,) = _existing(file, file.read([_span(places)]))
            return file.name, places, data

        # Remote tables of the next files are read while chunks of the first ones are, and decoded
        # by the caller.
        for path, places, data in store.map(read, stretches(), at_once):
            for row, chunk, offset in _cut(places, data):
                c, x, y, z = cells[row].tolist()
                yield StoredChunk((c, x, y, z), chunk, path, offset)


class RewritableShards(Shards):
    """Layout whose shards can be written from any chunks in any order."""

    __slots__ = ()

    @abstractmethod
    def write_chunks(
        self, cells: IntArray, append: Callable[[int], None], buffer: FileBuffer
    ) -> bytes:
        """Append some chunks, shape (n, 4), by their rows, and tables to ``buffer``; return the
        bytes for the start of the file, as many as ``head_nbytes``."""


def read_located(
    file: StoredFile, places: IntArray, store: Store
) -> Iterator[tuple[int, bytes, int]]:
    """Read byte ranges, shape (n, 3) with start, stop and row, merging those close to each other;
    yields row, bytes and offset."""
    stretches = list(_stretches(places, store))
    at_once = _REMOTE_BATCHES if store.is_remote else 1
    for first in range(0, len(stretches), at_once):
        requested = stretches[first : first + at_once]
        for stretch, data in zip(
            requested, _existing(file, file.read(list(map(_span, requested)))), strict=True
        ):
            yield from _cut(stretch, data)


def _stretches(places: IntArray, store: Store) -> Iterator[IntArray]:
    """Split byte ranges in any order into those that are read together."""
    return (
        byte_ranges(
            places[np.argsort(places[:, 0], kind="stable")], store.gap_nbytes, store.batch_nbytes
        )
        if len(places)
        else iter(())
    )


def _span(stretch: IntArray) -> tuple[int, int]:
    return int(stretch[0, 0]), int(stretch[:, 1].max())


def _existing(file: StoredFile, parts: list[bytes] | None) -> list[bytes]:
    if parts is None:
        raise MissingError(f"{file.name}: not found, though it existed a moment ago")
    return parts


def _cut(stretch: IntArray, data: bytes) -> Iterator[tuple[int, bytes, int]]:
    begin = int(stretch[0, 0])
    return (
        (row, data[start - begin : stop - begin], start) for start, stop, row in stretch.tolist()
    )


def _nbytes(array: ChunkSource) -> int:
    """Return the size of a decoded chunk [bytes]."""
    return math.prod(array.grid.chunk) * array.dtype.itemsize


def chunks_at_once(array: ChunkSource, max_nbytes: int) -> int:
    """Return how many files of one chunk are read ahead, none of them larger than
    ``max_nbytes``."""
    if not array.store.is_remote:
        return 1
    return max(
        2,
        min(
            array.store.files_at_once,
            _AHEAD_NBYTES // _nbytes(array),
            _LARGEST_AHEAD_NBYTES // max_nbytes,
        ),
    )


def _shards_at_once(array: ChunkSource, num_chunks: int) -> int:
    """Return how many shards are read ahead, of each at most ``num_chunks`` chunks."""
    return max(
        2,
        min(
            array.store.files_at_once,
            _AHEAD_NBYTES // min(num_chunks * _nbytes(array), array.store.batch_nbytes),
        ),
    )


def _ahead_nbytes(array: ChunkSource, cells: IntArray, members: IntArray) -> int:
    """Return how much of a shard is requested before its tables are known: if nearly all of its
    chunks are wanted, as much as one request reads, else 0."""
    store, grid = array.store, array.grid
    if not store.is_remote:
        return 0
    if grid.file is None:  # any of the other chunks may be in the shard
        unwanted = math.prod(grid.counts) - len(cells)
    else:
        counts = [file // chunk for file, chunk in zip(grid.file, grid.chunk, strict=True)]
        low = [
            n // count * count for n, count in zip(cells[members[0]].tolist(), counts, strict=True)
        ]
        unwanted = math.prod(
            min(count, end - n) for n, count, end in zip(low, counts, grid.counts, strict=True)
        ) - len(members)
    is_nearly_whole = (
        4 * unwanted <= len(members)
        and unwanted * array.codec.largest_nbytes(grid.chunk) <= store.gap_nbytes
    )
    return store.batch_nbytes if is_nearly_whole else 0


def byte_ranges(places: IntArray, gap_nbytes: int, largest: int) -> Iterator[IntArray]:
    """Split chunks, sorted by offset, into byte ranges that are read at once; the first two columns
    are start and stop."""
    first, end = 0, int(places[0, 1])
    for n, (start, stop, *_) in enumerate(places.tolist()):
        if n > first and (start > end + gap_nbytes or stop - int(places[first, 0]) > largest):
            yield places[first:n]
            first, end = n, stop
        end = max(end, stop)
    yield places[first:]


def cell_batches(ranges: Ranges, grid: ChunkGrid) -> Iterator[IntArray]:
    """Split a box of chunks into batches of limited size, each of whole shards if these are small
    enough; each has shape (n, 4)."""
    steps = list(
        _HASHED_CELLS
        if grid.file is None
        else (max(1, n // edge) for n, edge in zip(grid.file, grid.chunk, strict=True))
    )
    # Double the shortest axis until a batch has enough cells, so that batches stay compact.
    while math.prod(steps) < _CELLS_AT_ONCE and any(
        step < len(cells) for step, cells in zip(steps, ranges, strict=True)
    ):
        axis = min(range(4), key=lambda n: steps[n] if steps[n] < len(ranges[n]) else 1 << 62)
        steps[axis] *= 2
    batches = [
        [
            range(max(cells.start, first), min(cells.stop, first + step))
            for first in range(cells.start // step * step, cells.stop, step)
        ]
        for cells, step in zip(ranges, steps, strict=True)
    ]
    for batch in product(*batches[::-1]):
        yield box_cells(batch[::-1])


def box_cells(ranges: Sequence[range]) -> IntArray:
    """List the cells of a box, c fastest, then x, shape (n, 4)."""
    arrays = [np.arange(cells.start, cells.stop, dtype=np.int64) for cells in ranges]
    return np.stack([axis.ravel(order="F") for axis in np.meshgrid(*arrays, indexing="ij")], axis=1)
