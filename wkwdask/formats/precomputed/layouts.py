"""Layouts of a precomputed scale: each chunk is a file, or many chunks share a shard (neuroglancer,
``precomputed/sharded.rst``).

A shard with three minishards::

    | shard index: (start, end) of each minishard index | chunks of 0 | index of 0 | chunks of 1 | index of 1 | chunks of 2 | index of 2 |
                                                        ^ offset 0 of all tables

A read of a chunk needs one entry of the shard index, the index of its minishard, and the chunk.
Tables are cached until the file changes.
"""  # noqa: E501

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from wkwdask.errors import CorruptError, FormatError, MissingError, TruncatedError
from wkwdask.formats.compressed_streams import (
    BZIP2,
    GZIP_MAGIC,
    XZ,
    decompress_gzip,
    decompress_streams,
)
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.precomputed.naming import SUFFIXES, SpanNaming
from wkwdask.formats.precomputed.sharding import (
    INDEX_ENTRY_NBYTES,
    MINISHARD_ENTRY_NBYTES,
    Sharding,
    format_minishard_index,
    format_shard_index,
    locate_one,
    parse_minishard_index,
)
from wkwdask.geometry import compressed_morton
from wkwdask.model.extras import import_extra
from wkwdask.model.faults import Fault
from wkwdask.model.layout import (
    InspectedShard,
    RewritableShards,
    SingleFiles,
    Slab,
    StoredChunk,
    chunks_at_once,
    read_located,
)
from wkwdask.store.lru import LruCache
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from wkwdask.array_types import IntArray, UintArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import ChunkGrid, Ranges, Vec4
    from wkwdask.model.layout import ChunkSource
    from wkwdask.model.store import Store, StoredFile
    from wkwdask.model.writing.file_buffer import FileBuffer

# output buffer for Brotli and Zstandard streams, which need not state their length
_MAX_BUFFER_NBYTES = 1 << 32
_PAGE_ENTRIES = 1024  # entries of a shard index that are read together
_TABLE_CACHE_NBYTES = 64 << 20
_LARGEST_OFFSET = 1 << 62

_tables: LruCache[UintArray] = LruCache(_TABLE_CACHE_NBYTES, lambda table: table.nbytes + 256)
_suffixes: LruCache[_Suffixes] = LruCache(1024)
"""Suffixes of the chunks of each folder."""
_MOST_SEARCHES = 8
"""Absent chunks of a folder on a server that are looked for under all names, which costs six
requests each."""
_USUAL_SUFFIX = ".gz"
"""Suffix under which every absent chunk is looked for: cloud-volume appends it by default, so
writers may mix such files with plain ones."""
_unsplit: LruCache[bool] = LruCache(1024)
"""Folders on servers with a shard in one file: no writer mixes these with shards in two files."""


# ------------------------------------------------------------------------------------------------
# chunks that are files


def largest_file(largest: int) -> int:
    """Return the largest size of a file whose content has ``largest`` bytes: compression slightly
    enlarges noise."""
    return largest + largest // 8 + 4096


class SpanFiles(SingleFiles):
    """Each chunk is a file, which may be compressed."""

    __slots__ = ()

    names_chunks = True

    def content(self, array: ChunkSource, cell: Vec4, data: bytes, path: str) -> bytes:
        assert isinstance(array.codec, PrecomputedCodec)
        return decompress_file(
            data,
            path,
            array.codec.largest_nbytes(array.grid.chunk),
            array.codec,
            array.grid.shape_at(cell),
        )

    def exact_nbytes(self, array: ChunkSource, cell: Vec4, path: str) -> int | None:
        assert isinstance(array.codec, PrecomputedCodec)
        is_raw = array.codec.encoding == "raw" and not path.endswith(SUFFIXES[1:])
        return array.codec.largest_nbytes(array.grid.shape_at(cell)) if is_raw else None

    def chunks(self, array: ChunkSource, ranges: Ranges) -> Iterator[StoredChunk]:
        assert isinstance(array.naming, SpanNaming)
        return self._read(array, array.naming.stems(ranges))

    def chunks_at(self, array: ChunkSource, cells: IntArray) -> Iterator[StoredChunk]:
        naming = array.naming
        assert isinstance(naming, SpanNaming)
        return self._read(
            array, (((c, x, y, z), naming.stem((c, x, y, z))) for c, x, y, z in cells.tolist())
        )

    def slabs(
        self, array: ChunkSource, ranges: Ranges, z: tuple[int, int]
    ) -> Iterator[tuple[StoredChunk, Slab | None]]:
        store, naming = array.store, array.naming
        assert isinstance(naming, SpanNaming)
        known = _suffixes.get((store.opening, store.url))
        if store.is_remote or known is None or known.seen != ("",):
            yield from super().slabs(array, ranges, z)
            return
        for cell, stem in naming.stems(ranges):
            part = None
            with ExitStack() as stack:
                file = store.open(stem)
                if file is not None:
                    stack.enter_context(file)
                    part = Slab.of(array, cell, z, (0, file.nbytes or 0))
                if file is not None and part is not None:
                    slab, place = part
                    for data in file.read([place]) or ():
                        yield StoredChunk(cell, data, file.name, place[0]), slab
            if part is None:
                yield from ((chunk, None) for chunk in self._read(array, iter([(cell, stem)])))

    def _read(self, array: ChunkSource, stems: Iterator[tuple[Vec4, str]]) -> Iterator[StoredChunk]:
        """Yield stored chunks with their files decompressed."""
        store, codec, grid, naming = array.store, array.codec, array.grid, array.naming
        assert isinstance(codec, PrecomputedCodec)
        assert isinstance(naming, SpanNaming)
        largest = codec.largest_nbytes(grid.chunk)
        _, x, y, z = (n // 2 for n in grid.counts)
        center = naming.stem((0, x, y, z))

        def read(named_cell: tuple[Vec4, str]) -> StoredChunk | None:
            cell, stem = named_cell
            name, data = _read_file(store, stem, center, largest_file(largest))
            if data is None:
                return None
            path = store.path_of(name)
            return StoredChunk(cell, self.content(array, cell, data, path), path, 0)

        return filter(None, store.map(read, stems, chunks_at_once(array, largest_file(largest))))


class _Suffixes:
    """Suffixes of the chunks of one folder, as they become known."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self.searches = 0
        self.add = self._seen.add

    @property
    def seen(self) -> tuple[str, ...]:
        """Suffixes in the order of lookup."""
        return tuple(suffix for suffix in SUFFIXES if suffix in self._seen)


def _read_file(store: Store, stem: str, center: str, largest: int) -> tuple[str, bytes | None]:
    """Read a file under the first of its possible names that exists: the suffix states the
    compression. ``center`` is the chunk in the middle."""
    (suffixes,) = _suffixes.get_or_make([(store.opening, store.url)], lambda _: [_Suffixes()])
    likely = tuple(dict.fromkeys((*suffixes.seen, "")))
    suffix, data = _first_existing(store, stem, likely, largest)
    if data is None:
        seen = suffixes.seen  # by now, other threads may have seen more
        if not store.is_remote or not seen or suffixes.searches < _MOST_SEARCHES:
            suffix, data = _search(store, stem, likely, largest)
            # one that finds a file must not use up those of other threads
            suffixes.searches += data is None
            if (
                data is None
                and not seen
                and suffixes.searches == _MOST_SEARCHES
                and store.is_remote
            ):
                found, voxels = _search(store, center, [], largest)
                if voxels is not None:
                    suffixes.add(found)
        else:
            suffix, data = _first_existing(
                store,
                stem,
                [each for each in dict.fromkeys((*seen, _USUAL_SUFFIX)) if each not in likely],
                largest,
            )
    if data is not None and suffix not in suffixes.seen:
        suffixes.add(suffix)
    return stem + suffix, data


def _first_existing(
    store: Store, stem: str, suffixes: Sequence[str], largest: int
) -> tuple[str, bytes | None]:
    for suffix in suffixes:
        (data,) = store.read_whole([stem + suffix], largest)
        if data is not None:
            return suffix, data
    return "", None


def _search(
    store: Store, stem: str, asked: Sequence[str], largest: int
) -> tuple[str, bytes | None]:
    """Read a file under the names that were not asked for; those on a server are requested at
    once."""
    others = [suffix for suffix in SUFFIXES if suffix not in asked]
    if not store.is_remote:
        return _first_existing(store, stem, others, largest)
    contents = store.read_whole([stem + suffix for suffix in others], largest)
    return next(
        ((suffix, data) for suffix, data in zip(others, contents, strict=True) if data is not None),
        ("", None),
    )


def decompress_file(
    data: bytes, path: str, largest: int, codec: PrecomputedCodec, shape: Vec4
) -> bytes:
    """Decompress the file of a chunk by its suffix."""
    # A server may send a stored gzip stream without Content-Encoding, and a copy from it contains
    # the stream. So gzip is also recognised by its first bytes. No other encoding begins with them.
    # A raw chunk may, but then it has exactly the size of its voxels.
    is_wrapped = data[:2] == GZIP_MAGIC and (
        codec.encoding != "raw" or len(data) != codec.largest_nbytes(shape)
    )
    if path.endswith(".gz") or is_wrapped:
        return decompress_gzip(data, largest, path, 0)
    if path.endswith((".br", ".zstd")):
        codecs, what = (
            import_extra("imagecodecs", path, "precomputed"),
            "Brotli" if path.endswith(".br") else "Zstandard",
        )
        decode = codecs.brotli_decode if path.endswith(".br") else codecs.zstd_decode
        try:
            # only filled pages of the buffer take memory
            out: bytes = decode(data, out=min(largest, max(_MAX_BUFFER_NBYTES, largest // 64)))
        except MemoryError:
            raise
        except Exception as error:
            raise CorruptError(
                f"{path}: byte 0: expected a {what} stream of {len(data)} bytes that decompresses "
                f"to at most {largest} bytes: {error}"
            ) from None
        return out
    if path.endswith((".xz", ".bz2")):
        kind, what = (XZ, "xz") if path.endswith(".xz") else (BZIP2, "bzip2")
        out = decompress_streams(kind, data, largest, path, 0)
        if len(out) > largest:
            raise CorruptError(
                f"{path}: byte 0: a {what} stream of {len(data)} bytes decompresses to {len(out)}, "
                f"expected at most {largest}"
            )
        return out
    return data


# ------------------------------------------------------------------------------------------------
# shards


def nbytes_of(file: StoredFile) -> int:
    """Return the size of an open file; that of a remote one may have to be asked for."""
    return store_at(file.name).status().st_size if file.nbytes is None else file.nbytes


class OpenShard:
    """An open shard: one file, or an index file and a data file in the obsolete layout. Reads bytes
    of the file with the chunks."""

    def __init__(
        self, store: Store, file: StoredFile, layout: PrecomputedShards, index_file: StoredFile
    ) -> None:
        self.store, self.file, self.layout, self.index_file, self.name = (
            store,
            file,
            layout,
            index_file,
            file.name,
        )
        self.read, self.read_end, self.read_into = file.read, file.read_end, file.read_into

    @property
    def nbytes(self) -> int | None:
        return self.file.nbytes

    @property
    def total_nbytes(self) -> int:
        """Size of all its files."""
        own = nbytes_of(self.file)
        return own if self.index_file is self.file else own + nbytes_of(self.index_file)

    @property
    def state(self) -> Hashable:
        return self.file.state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    @property
    def first_byte(self) -> int:
        """Byte of the file that is offset 0 of the tables."""
        return self.layout.sharding.index_nbytes if self.index_file is self.file else 0

    @property
    def data_nbytes(self) -> int | None:
        """Number of bytes behind the shard index, None if the size of a remote file is unknown."""
        return None if self.nbytes is None else max(0, self.nbytes - self.first_byte)

    def exists(self) -> bool:
        """Return whether the shard is stored. For a remote file of unknown size this reads a page
        of its index."""
        return self.nbytes is not None or len(self._page(0)) > 0

    def minishard_range(self, minishard: int) -> tuple[int, int] | None:
        """Return start and end of a minishard index, counted from the end of the shard index, or
        None if the shard is absent."""
        page, row = divmod(minishard, _PAGE_ENTRIES)
        table = self._page(page)
        if not len(table):
            return None
        start, stop = table[row].tolist()
        limit = self.data_nbytes
        if start > stop or (start < stop and stop > (_LARGEST_OFFSET if limit is None else limit)):
            available = "" if limit is None else f" of the {limit} bytes behind the shard index"
            where = f"{self.index_file.name}: byte {INDEX_ENTRY_NBYTES * minishard}"
            raise CorruptError(
                f"{where}: the shard index places the index of minishard {minishard} from {start} "
                f"to {stop}{available}"
            )
        if start == stop and self.is_unreferenced():
            raise CorruptError(
                f"{self.index_file.name}: byte 0: the shard index lists no minishard, though "
                "chunks follow it"
            )
        return start, stop

    def is_unreferenced(self) -> bool:
        """Return whether the shard index is empty, but bytes follow it."""
        pages = -(-(1 << self.layout.sharding.minishard_bits) // _PAGE_ENTRIES)
        if any((table[:, 0] != table[:, 1]).any() for table in map(self._page, range(pages))):
            return False
        if self.data_nbytes is not None:
            return self.data_nbytes > 0
        try:
            parts = self.read([(self.first_byte, self.first_byte + 1)])
        except TruncatedError:
            return False
        return parts is not None and len(parts[0]) > 0

    def _page(self, page: int) -> UintArray:
        """Return a page of the shard index, shape (n, 2), empty if the shard is absent."""
        file, sharding = self.index_file, self.layout.sharding

        def read_page(_: object) -> list[UintArray]:
            first = page * _PAGE_ENTRIES * INDEX_ENTRY_NBYTES
            last = min(first + _PAGE_ENTRIES * INDEX_ENTRY_NBYTES, sharding.index_nbytes)
            parts = file.read([(first, last)])
            if parts is not None and len(parts[0]) < last - first:
                raise TruncatedError(
                    f"{file.name}: ends at byte {first + len(parts[0])}, expected a shard with an "
                    f"index of {sharding.index_nbytes} bytes"
                )
            return [
                np.frombuffer(b"" if parts is None else parts[0], "<u8")
                .reshape(-1, 2)
                .astype(np.uint64)
            ]

        return _tables.get_or_make([(file.name, file.state, sharding, "index", page)], read_page)[0]

    def minishards(self, numbers: Sequence[int]) -> list[UintArray]:
        """Return the indexes of minishards: identifiers, starts and sizes, shape (3, n), empty if
        the shard is absent."""

        def read(keys: list[tuple[str, Hashable, Sharding, str, int]]) -> Iterable[UintArray]:
            spans = {number: self.minishard_range(number) or (0, 0) for *_, number in keys}
            return self.read_minishards(spans).values()

        return _tables.get_or_make(
            [
                (self.name, self.state, self.layout.sharding, "minishard", number)
                for number in numbers
            ],
            read,
        )

    def read_minishards(self, spans: Mapping[int, tuple[int, int]]) -> dict[int, UintArray]:
        """Read the indexes of minishards from their places, counted from the end of the shard
        index."""
        is_gzip = self.layout.sharding.minishard_index_encoding == "gzip"
        limit = MINISHARD_ENTRY_NBYTES * self.layout.sharding.minishard_chunks(self.layout.counts)
        for number, (start, stop) in () if is_gzip else spans.items():
            if stop - start > limit:
                found = f"the index of minishard {number} has {stop - start} bytes"
                raise CorruptError(
                    f"{self.name}: byte {self.first_byte + start}: {found}, expected at most "
                    f"{limit}"
                )
        tables = {number: np.zeros((3, 0), np.uint64) for number in spans}
        first = self.first_byte
        places = [
            (first + start, first + stop, number)
            for number, (start, stop) in spans.items()
            if start < stop
        ]
        for number, raw, offset in read_located(
            self, np.array(places, np.int64).reshape(-1, 3), self.store
        ):
            data = (
                decompress_gzip(raw, limit, f"{self.name}: the index of minishard {number}", offset)
                if is_gzip
                else raw
            )
            tables[number] = np.stack(
                parse_minishard_index(
                    data, f"{self.name}: minishard {number}", offset, self.data_nbytes
                )
            )
        return tables


@dataclass(frozen=True, slots=True)
class PrecomputedShards(RewritableShards):
    """Layout of shards; new ones hold the chunks of each minishard, then its index."""

    sharding: Sharding
    counts: Vec3

    @contextmanager
    def opened(self, store: Store, key: str, ahead_nbytes: int = 0) -> Iterator[OpenShard | None]:
        """Open a shard, or its two files in the obsolete layout; yield None if neither exists."""
        with ExitStack() as stack:
            file = store.open(key, ahead_nbytes)
            if file is not None:
                shard = OpenShard(store, stack.enter_context(file), self, file)
                if shard.exists():
                    if store.is_remote:
                        _unsplit.put((store.opening, store.url), True)
                    yield shard
                    return
            if _unsplit.get((store.opening, store.url)):
                yield None
                return
            stem = key.removesuffix("shard")
            index_file = store.open(f"{stem}index")
            if index_file is None:
                yield None
                return
            stack.enter_context(index_file)
            file = store.open(f"{stem}data")
            if file is None:
                raise MissingError(
                    f"{store.path_of(f'{stem}data')}: not found, though {stem}index exists"
                )
            shard = OpenShard(store, stack.enter_context(file), self, index_file)
            yield shard if shard.exists() else None

    def locate(self, file: StoredFile, cells: IntArray) -> IntArray:
        assert isinstance(file, OpenShard)
        ids = self.ids(cells)
        groups = self._by_minishard(ids)
        tables = zip(groups.values(), file.minishards(list(groups)), strict=True)
        rows = [
            _places(table, members, ids[members], file.first_byte)
            for members, table in tables
            if table.shape[1]
        ]
        return np.concatenate(rows) if rows else np.zeros((0, 3), np.int64)

    def places_of(
        self, file: StoredFile, cells: Sequence[Vec4]
    ) -> Iterator[tuple[int, int] | None]:
        assert isinstance(file, OpenShard)
        for cell in cells:
            code = compressed_morton.code_of(cell[1:], self.counts)
            (table,) = file.minishards([locate_one(self.sharding, code)[1]])
            ids = table[0]
            row = int(ids.searchsorted(np.uint64(code)))
            if row == len(ids) or ids.item(row) != code:
                yield None
            else:
                start = table.item(1, row) + file.first_byte
                yield start, start + table.item(2, row)

    def inspect(self, file: StoredFile, cells: IntArray) -> InspectedShard:
        assert isinstance(file, OpenShard)
        ids, is_stored, rows, faults = (
            self.ids(cells),
            np.zeros(len(cells), np.bool_),
            [np.zeros((0, 3), np.int64)],
            [],
        )
        for minishard, members in self._by_minishard(ids).items():
            try:
                (table,) = file.minishards([minishard])
            except FormatError as error:
                faults.append(
                    (
                        Fault(
                            "minishard.broken", file.name, str(error).removeprefix(f"{file.name}: ")
                        ),
                        -1,
                    )
                )
                is_stored[members] = True  # perhaps
                continue
            if table.shape[1]:
                rows.append(_places(table, members, ids[members], file.first_byte))
                is_stored[rows[-1][:, 2]] = True
        return InspectedShard(np.concatenate(rows), is_stored, faults)

    def _by_minishard(self, ids: UintArray) -> dict[int, IntArray]:
        """Return the rows of chunks of one shard by the number of their minishard."""
        _, minishards = self.sharding.locate(ids)
        order = np.argsort(minishards, kind="stable")
        groups = (
            np.split(order, np.flatnonzero(np.diff(minishards[order])) + 1) if len(order) else []
        )
        return {int(minishards[members[0]]): members for members in groups}

    # --------------------------------------------------------------------------------------------
    # writing

    def ids(self, cells: IntArray) -> UintArray:
        return compressed_morton.encode(cells[:, 1:], self.counts)

    def codes(self, cells: IntArray) -> UintArray:
        """Return the identifiers of chunks relative to the first one of their shard: its lowest
        bits, since shards are not hashed."""
        within = self.sharding.within_bits
        return self.ids(cells) & np.uint64((1 << min(within, 64)) - 1)

    def codes_per_file(self, grid: ChunkGrid) -> int:
        return grid.chunks_per_file

    @property
    def head_nbytes(self) -> int:
        return self.sharding.index_nbytes

    def new_shard(self, first: Vec4, grid: ChunkGrid, buffer: FileBuffer) -> _NewShard:
        del grid
        return _NewShard(self.sharding, int(self.ids(np.array([first]))[0]), buffer)

    def is_whole(self, file: StoredFile) -> bool:
        """Return whether the last minishard index ends where the file does, as in all shards that
        wkwdask writes."""
        parts, nbytes = file.read([(0, self.head_nbytes)]), file.nbytes or 0
        if parts is None or len(parts[0]) != self.head_nbytes:
            return False
        index = np.frombuffer(parts[0], "<u8").reshape(-1, 2)
        return (
            bool((index[:, 0] <= index[:, 1]).all())
            and int(index.max()) == nbytes - self.head_nbytes
        )

    def expected_nbytes(self, files: int, chunks: int) -> int:
        return files * self.head_nbytes + MINISHARD_ENTRY_NBYTES * chunks

    def write_chunks(
        self, cells: IntArray, append: Callable[[int], None], buffer: FileBuffer
    ) -> bytes:
        ids, ranges = self.ids(cells), np.zeros((2, 1 << self.sharding.minishard_bits), np.uint64)
        for minishard, members in self._by_minishard(ids).items():
            ordered = members[np.argsort(ids[members])]
            ends = [buffer.end - self.head_nbytes]
            for row in ordered.tolist():
                append(row)
                ends.append(buffer.end - self.head_nbytes)
            columns = np.array(ends[:-1], np.uint64), np.diff(ends).astype(np.uint64)
            buffer.append(
                np.frombuffer(
                    format_minishard_index(
                        ids[ordered], *columns, self.sharding.minishard_index_encoding
                    ),
                    np.uint8,
                )
            )
            ranges[:, minishard] = ends[-1], buffer.end - self.head_nbytes
        return format_shard_index(*ranges)


def _places(table: UintArray, members: IntArray, ids: UintArray, first_byte: int) -> IntArray:
    """Look up chunks in the index of their minishard; return first byte, end and row of each stored
    one."""
    positions = np.minimum(np.searchsorted(table[0], ids), table.shape[1] - 1)
    is_stored = table[0, positions] == ids
    starts, sizes = (
        table[1, positions[is_stored]].astype(np.int64) + first_byte,
        table[2, positions[is_stored]].astype(np.int64),
    )
    return np.stack([starts, starts + sizes, members[is_stored]], axis=1)


class _NewShard:
    """A shard being written, with hash identity. Memory holds a write buffer and the tables, never
    the chunks."""

    # Chunks arrive in ascending order of identifiers, so the chunks of a minishard follow each
    # other:
    #     | shard index (written last) | chunks | index | chunks | index | ...

    def __init__(self, sharding: Sharding, first_id: int, buffer: FileBuffer) -> None:
        self._sharding, self._first_id = sharding, np.uint64(first_id)
        self._minishard = 0
        self._tables: list[tuple[UintArray, UintArray, UintArray]] = []
        self._ranges = np.zeros((2, 1 << sharding.minishard_bits), np.uint64)
        self.buffer = buffer

    @property
    def _end(self) -> int:
        """Offset of the next byte, counted from the end of the shard index."""
        return self.buffer.end - self._sharding.index_nbytes

    def start_stretch(self, codes: UintArray) -> int:
        """Finish the previous minishard if another one begins, and return how many of the chunks
        belong to the current one."""
        shift = np.uint64(min(self._sharding.preshift_bits, 63))
        minishard = int(codes[0] >> shift)
        if minishard != self._minishard:
            self._end_minishard()
            self._minishard = minishard
        return int(np.searchsorted(codes, np.uint64(minishard + 1) << shift))

    def record(self, codes: UintArray, sizes: IntArray) -> None:
        lengths = sizes.astype(np.uint64)
        # The chunks are already appended: the last one ends at _end, so starts are sums of lengths
        # from the back.
        starts = np.uint64(self._end) - lengths[::-1].cumsum(dtype=np.uint64)[::-1]
        self._tables.append((codes + self._first_id, starts, lengths))

    def _end_minishard(self) -> None:
        if not self._tables:
            return
        ids, starts, sizes = (
            np.concatenate(columns) for columns in zip(*self._tables, strict=True)
        )
        self._tables.clear()
        start = self._end
        self.buffer.append(
            np.frombuffer(
                format_minishard_index(ids, starts, sizes, self._sharding.minishard_index_encoding),
                np.uint8,
            )
        )
        self._ranges[:, self._minishard] = start, self._end

    def finish(self) -> bytes:
        self._end_minishard()
        return format_shard_index(*self._ranges)
