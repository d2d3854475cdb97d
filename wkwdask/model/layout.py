"""How the chunks of a stored array lie in files: one in each, or many in a shard."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import contextmanager
from itertools import islice, product
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from wkwdask.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import ChunkGrid, Ranges, Vec4
    from wkwdask.model.codec import ChunkCodec
    from wkwdask.model.file_buffer import FileBuffer
    from wkwdask.model.naming import KeyNaming
    from wkwdask.model.store import Store, StoredFile

READ_AHEAD_NBYTES = 64 << 20
"""Of remote files that are read at once."""
_CELLS_AT_ONCE = 1 << 16
_REMOTE_BATCHES = 8  # requests at once
_HASHED_CELLS = (1, 64, 64, 64)  # that are located at once where shards are no boxes


class ChunkSource(Protocol):
    """What a layout needs of a stored array to read chunks."""

    @property
    def store(self) -> Store: ...

    @property
    def grid(self) -> ChunkGrid: ...

    @property
    def naming(self) -> KeyNaming | None: ...

    @property
    def codec(self) -> ChunkCodec: ...


class StoredChunk(NamedTuple):
    """The stored bytes of a chunk."""

    cell: Vec4
    """Which chunk."""
    data: bytes
    """The bytes."""
    path: str
    """The file."""
    offset: int
    """First byte in the file."""


class ShardFile(Protocol):
    """A new shard, to which chunks are appended."""

    buffer: FileBuffer

    def start_stretch(self, codes: npt.NDArray[np.uint64]) -> int:
        """Write what comes before the first of some chunks, and return how many of them can be appended to ``buffer`` next."""

    def record(self, codes: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
        """Take note of chunks that were appended."""

    def finish(self) -> bytes:
        """Write what comes after the last chunk, and return what goes to the start of the file."""


class ShardLayout(ABC):
    """How chunks lie in files."""

    __slots__ = ()

    is_sharded = True
    """Whether a file holds many chunks."""
    names_chunks = True
    """Whether errors name the chunk besides the file."""
    is_dense = False
    """Whether chunks that are all zero are stored too, where a file has others."""
    is_regular = False
    """Whether files are cubes of powers of two from voxel 0 on."""

    @abstractmethod
    def chunks(self, array: ChunkSource, ranges: Ranges) -> Iterator[StoredChunk]:
        """Read the stored chunks of a box, in any order; absent ones are left out."""

    @abstractmethod
    def codes(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Number chunks, shape (n, 4), inside of their files, in the order in which they are best stored."""

    def in_order(self, low: Vec3, high: Vec3) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """List the chunks of a box inside of one file in the order in which they are best stored: codes, and places along x, y, z."""
        places = box_cells((range(1), *map(range, low, high)))
        codes = self.codes(places)
        order = np.argsort(codes, kind="stable")
        return codes[order], places[order, 1:]


class SingleFiles(ShardLayout):
    """Each chunk is a file."""

    __slots__ = ()

    is_sharded = False
    names_chunks = False

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def chunks(self, array: ChunkSource, ranges: Ranges) -> Iterator[StoredChunk]:
        """Read chunks, several at once where that is better."""
        store, naming = array.store, array.naming
        assert naming is not None
        every = naming.keys(ranges)
        largest = array.codec.largest_nbytes(array.grid.chunk)
        at_once = max(1, min(store.files_at_once, READ_AHEAD_NBYTES // max(1, largest)))
        largest += largest // 8 + 4096  # compressing what cannot be compressed makes it a little larger
        while some := list(islice(every, at_once)):
            names = [name for _, name in some]
            for (cell, name), data in zip(some, store.read_whole(names, largest), strict=True):
                if data is not None:
                    yield StoredChunk(cell, data, store.path_of(name), 0)

    def codes(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Number chunks as they are listed."""
        return np.arange(len(cells), dtype=np.uint64)


class Shards(ShardLayout):
    """Many chunks are in one file, which has tables of their places."""

    __slots__ = ()

    is_ordered = False
    """Whether the chunks of a shard must be appended in the order of their codes."""

    @contextmanager
    def opened(self, store: Store, key: str) -> Iterator[StoredFile | None]:
        """Open a shard."""
        file = store.open(key)
        if file is None:
            yield None
            return
        with file:
            yield file

    @abstractmethod
    def locate(self, file: StoredFile, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Look up chunks, shape (n, 4): start, stop and row of each that is stored, shape (m, 3)."""

    def is_as_described(self, file: StoredFile) -> bool:
        """Check whether the chunks of a stored file are encoded as those of a new one."""
        del file
        return True

    @abstractmethod
    def cells_per_file(self, grid: ChunkGrid) -> int:
        """Return how many codes a file has."""

    @abstractmethod
    def new_shard(self, first: Vec4, grid: ChunkGrid, pieces: FileBuffer) -> ShardFile:
        """Start a shard, given its first chunk."""

    @property
    @abstractmethod
    def head_nbytes(self) -> int:
        """Bytes at the start of a shard that are written last."""

    @abstractmethod
    def is_whole(self, file: StoredFile) -> bool:
        """Check whether a shard has the tables that one which was written here has."""

    def without_zeros(self, file: StoredFile, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Leave out chunks, as :meth:`locate` lists them, that are stored though all of them are zero."""
        del file
        return places

    @abstractmethod
    def expected_nbytes(self, files: int, chunks: int) -> int:
        """Estimate the bytes of the tables of files, which hold some chunks."""

    def chunks(self, array: ChunkSource, ranges: Ranges) -> Iterator[StoredChunk]:
        """Read chunks shard by shard."""
        store, naming, grid = array.store, array.naming, array.grid
        assert naming is not None
        for cells in _parts(ranges, grid):
            for key, members in naming.locate(cells, grid):
                with self.opened(store, key) as file:
                    if file is None:
                        continue
                    for row, data, offset in read_located(file, self.locate(file, cells[members]), store):
                        c, x, y, z = cells[members[row]].tolist()
                        yield StoredChunk((c, x, y, z), data, file.name, offset)


def read_located(file: StoredFile, places: npt.NDArray[np.int64], store: Store) -> Iterator[tuple[int, bytes, int]]:
    """Read byte ranges, shape (n, 3) with start, stop and row, those that lie near each other together: row, bytes and offset."""
    if not len(places):
        return
    places = places[np.argsort(places[:, 0], kind="stable")]
    batches = list(_batches(places, store.gap_nbytes, store.batch_nbytes))
    at_once = 1 if store.is_local else _REMOTE_BATCHES
    for first in range(0, len(batches), at_once):
        some = batches[first : first + at_once]
        found = file.read([(int(batch[0, 0]), int(batch[:, 1].max())) for batch in some])
        if found is None:
            raise MissingError(f"{file.name}: not found, though it was there a moment ago")
        for batch, data in zip(some, found, strict=True):
            begin = int(batch[0, 0])
            for start, stop, row in batch.tolist():
                yield row, data[start - begin : stop - begin], start


def _batches(places: npt.NDArray[np.int64], gap_nbytes: int, largest: int) -> Iterator[npt.NDArray[np.int64]]:
    """Cut chunks, in the order of their places, into runs that are read together."""
    first, end = 0, int(places[0, 1])
    for n, (start, stop, _) in enumerate(places.tolist()):
        if n > first and (start > end + gap_nbytes or stop - int(places[first, 0]) > largest):
            yield places[first:n]
            first, end = n, stop
        end = max(end, stop)
    yield places[first:]


def _parts(ranges: Ranges, grid: ChunkGrid) -> Iterator[npt.NDArray[np.int64]]:
    """Cut a box of chunks into parts that are not too large, each of whole shards where these are small, shape (n, 4)."""
    steps = list(_HASHED_CELLS if grid.file is None else (max(1, n // edge) for n, edge in zip(grid.file, grid.chunk, strict=True)))
    while math.prod(steps) < _CELLS_AT_ONCE and any(step < len(cells) for step, cells in zip(steps, ranges, strict=True)):
        axis = min(range(4), key=lambda n: steps[n] if steps[n] < len(ranges[n]) else 1 << 62)
        steps[axis] *= 2
    parts = [
        [range(max(cells.start, first), min(cells.stop, first + step)) for first in range(cells.start // step * step, cells.stop, step)]
        for cells, step in zip(ranges, steps, strict=True)
    ]
    for part in product(*parts[::-1]):
        yield box_cells(part[::-1])


def box_cells(ranges: Sequence[range]) -> npt.NDArray[np.int64]:
    """List the chunks of a box, c fastest, then x, shape (n, 4)."""
    arrays = [np.arange(cells.start, cells.stop, dtype=np.int64) for cells in ranges]
    return np.stack([axis.ravel(order="F") for axis in np.meshgrid(*arrays, indexing="ij")], axis=1)
