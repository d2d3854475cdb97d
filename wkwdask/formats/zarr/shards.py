"""Shards of a Zarr v3 array (codec ``sharding_indexed`` 1.0): many chunks in one file, with an
index at its end or start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.formats.zarr.codec import CHECKSUM_NBYTES, crc32c
from wkwdask.geometry import compressed_morton
from wkwdask.model.faults import Fault
from wkwdask.model.layout import InspectedShard, RewritableShards
from wkwdask.store.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from wkwdask.array_types import BoolArray, IntArray, UintArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import ChunkGrid, Vec4
    from wkwdask.model.store import StoredFile
    from wkwdask.model.writing.file_buffer import FileBuffer

# Zarr v3, codec sharding_indexed 1.0, "Binary shard format":
#     | chunk | chunk | ... | index: offset, nbytes of each chunk (2 x uint64, little-endian) | CRC-32C of the index |  # noqa: E501
# The index has a row for every chunk of the shard, in C order of the stored axes; an empty chunk
# has offset and nbytes 2^64 - 1. The chunks may lie in any order. Tasks produce them in compressed
# Morton order, and new shards store them in this order.
_ENTRY_NBYTES = 16
_ABSENT = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_CACHE_NBYTES = 64 << 20
_MAX_SUSPECTS = 64  # rows of a damaged index that are corrected on trial

_index_cache: LruCache[UintArray] = LruCache(_CACHE_NBYTES, lambda table: table.nbytes + 256)


@dataclass(frozen=True, slots=True)
class ZarrShards(RewritableShards):
    cells: Vec4
    """Chunks in a shard along c, x, y, z."""
    axes: str
    index_at_end: bool = True
    has_checksum: bool = True

    @property
    def index_nbytes(self) -> int:
        return math.prod(self.cells) * _ENTRY_NBYTES + (CHECKSUM_NBYTES if self.has_checksum else 0)

    def rows(self, cells: IntArray) -> IntArray:
        inside, rows = cells % np.array(self.cells), np.zeros(len(cells), np.int64)
        for letter in self.axes.replace("-", ""):
            axis = "cxyz".index(letter)
            rows = rows * self.cells[axis] + inside[:, axis]
        return rows

    def locate(self, file: StoredFile, cells: IntArray) -> IntArray:
        """Return start, stop and row in ``cells`` of each stored chunk."""

        return _places(self._table(file)[self.rows(cells)])

    def places_of(
        self, file: StoredFile, cells: Sequence[Vec4]
    ) -> Iterator[tuple[int, int] | None]:
        table, (c, x, y, z), absent = self._table(file), self.cells, int(_ABSENT)
        steps, step = [0, 0, 0, 0], 1
        for letter in reversed(self.axes.replace("-", "")):
            axis = "cxyz".index(letter)
            steps[axis], step = step, step * self.cells[axis]
        for cell in cells:
            row = (
                cell[0] % c * steps[0]
                + cell[1] % x * steps[1]
                + cell[2] % y * steps[2]
                + cell[3] % z * steps[3]
            )
            start, nbytes = table.item(row, 0), table.item(row, 1)
            yield None if start == nbytes == absent else (start, start + nbytes)

    def _table(self, file: StoredFile) -> UintArray:
        """Return the index of a shard, from a cache."""

        def read_table(_: object) -> list[UintArray]:
            raw = self._read_index(file)
            return [
                np.full((math.prod(self.cells), 2), _ABSENT)
                if raw is None
                else self._parse_index(raw, file)
            ]

        return _index_cache.get_or_make([(file.name, file.state, self)], read_table)[0]

    def inspect(self, file: StoredFile, cells: IntArray) -> InspectedShard:
        nbytes = file.nbytes or 0
        raw = b"" if nbytes < self.index_nbytes else self._read_index(file)
        if not raw:
            fault = Fault(
                "shard.short",
                file.name,
                f"{nbytes} bytes",
                f"at least the {self.index_nbytes} bytes of its index",
                offset=0,
            )
            return InspectedShard(
                np.zeros((0, 3), np.int64), np.ones(len(cells), np.bool_), [(fault, -1)]
            )
        first = nbytes - self.index_nbytes if self.index_at_end else 0
        table, rows = _parse_table(raw, math.prod(self.cells)), self.rows(cells)
        row_faults = dict(self._faulty_rows(table, file, first))
        is_lost = np.array(
            [
                row in row_faults and row_faults[row].kind != "shard.overlap"
                for row in rows.tolist()
            ],
            np.bool_,
        )
        places = _places(np.where(is_lost[:, np.newaxis], _ABSENT, table[rows]))
        stored, computed = raw[table.nbytes :], crc32c(raw[: table.nbytes])
        if self.has_checksum and stored != computed:
            expected = f"{stored.hex()}, as stored at byte {first + table.nbytes}"
            fault = Fault(
                "shard.checksum",
                file.name,
                f"an index with the CRC-32C {computed.hex()}",
                expected,
                offset=first,
            )
            low, high = self._chunk_bytes(nbytes)
            if not row_faults and not _gaps(table, low, high):
                # only the checksum is damaged
                return InspectedShard(places, ~_is_absent(table[rows]), [(fault, -1)])
            corrected = _correct_table(table, stored, row_faults, low, high)
            if corrected is not None:
                return InspectedShard(
                    _places(corrected[rows]),
                    ~_is_absent(corrected[rows]),
                    [(fault, -1)],
                    is_intact=True,
                )
            # In a shard that was cut off, these rows are those of other chunks: one that decodes
            # proves nothing.
            return InspectedShard(
                np.zeros((0, 3), np.int64),
                np.ones(len(cells), np.bool_),
                [(fault, -1)],
                is_intact=False,
            )
        row_of = dict(zip(rows.tolist(), range(len(rows)), strict=True))
        return InspectedShard(
            places,
            ~_is_absent(table[rows]),
            [(fault, row_of.get(row, -1)) for row, fault in row_faults.items()],
            self.has_checksum or None,
        )

    def _chunk_bytes(self, nbytes: int) -> tuple[int, int]:
        """Return the first byte and the end of the chunks in a shard of some size."""
        return (0, nbytes - self.index_nbytes) if self.index_at_end else (self.index_nbytes, nbytes)

    def _faulty_rows(
        self, table: UintArray, file: StoredFile, first: int
    ) -> Iterator[tuple[int, Fault]]:
        """Yield the rows of an index at byte ``first`` that cannot be the place of a chunk, or that
        share bytes with another row or the index."""
        nbytes = file.nbytes or 0
        low, high = self._chunk_bytes(nbytes)
        is_wrong = _is_wrong(table, nbytes)
        is_empty = ~is_wrong & (table[:, 1] == 0)
        is_shared = _is_shared(table, ~is_wrong & ~is_empty & ~_is_absent(table), low, high)
        for row in np.flatnonzero(is_wrong | is_empty | is_shared).tolist():
            start, size = table[row].tolist()
            kind, expected = "shard.place", f"a place inside of the {nbytes} bytes of the file"
            if is_wrong[row] and _ABSENT in table[row]:
                expected = "2^64 - 1 twice, for an absent chunk"
            elif is_empty[row]:
                kind, expected = "chunk.empty", "an encoded chunk"
            elif is_shared[row]:
                kind, expected = (
                    "shard.overlap",
                    "bytes that belong to no other chunk and not to the index",
                )
            yield (
                row,
                Fault(
                    kind,
                    file.name,
                    f"index row {row} states {size} bytes at byte {start}",
                    expected,
                    row,
                    offset=first + row * _ENTRY_NBYTES,
                ),
            )

    def _read_index(self, file: StoredFile) -> bytes | None:
        if self.index_at_end:
            return file.read_end(self.index_nbytes)
        parts = file.read([(0, self.index_nbytes)])
        return None if parts is None else parts[0]

    def _parse_index(self, raw: bytes, file: StoredFile) -> UintArray:
        """Parse an index and check that every chunk lies inside the file."""
        if len(raw) < self.index_nbytes:
            raise TruncatedError(
                f"{file.name}: ends at byte {len(raw)}, expected a shard with an index of "
                f"{self.index_nbytes} bytes"
            )
        if self.has_checksum:
            raw, checksum = raw[:-CHECKSUM_NBYTES], raw[-CHECKSUM_NBYTES:]
            if crc32c(raw) != checksum:
                raise CorruptError(
                    f"{file.name}: the index of the shard does not have the checksum "
                    f"{checksum.hex()} that is stored with it"
                )
        table = _parse_table(raw, math.prod(self.cells))
        is_wrong = _is_wrong(table, (1 << 62) if file.nbytes is None else file.nbytes)
        if is_wrong.any():
            n = int(np.flatnonzero(is_wrong)[0])
            start, nbytes = table[n].tolist()
            raise CorruptError(
                f"{file.name}: index row {n} states a chunk of {nbytes} bytes at byte {start}, "
                "outside of the file"
            )
        return table

    # --------------------------------------------------------------------------------------------
    # writing

    @property
    def _morton_grid(self) -> Vec3:
        x, y, z = (1 << (n - 1).bit_length() for n in self.cells[1:])
        return x, y, z

    def codes(self, cells: IntArray) -> UintArray:
        """Return the Morton codes of chunks; those of a further chunk along c follow each other."""
        inside = cells % np.array(self.cells)
        channels = inside[:, 0].astype(np.uint64) * np.uint64(math.prod(self._morton_grid))
        codes: UintArray = channels + compressed_morton.encode(inside[:, 1:], self._morton_grid)
        return codes

    def codes_per_file(self, grid: ChunkGrid) -> int:
        del grid
        return self.cells[0] * math.prod(self._morton_grid)

    @property
    def head_nbytes(self) -> int:
        return 0 if self.index_at_end else self.index_nbytes

    def new_shard(self, first: Vec4, grid: ChunkGrid, buffer: FileBuffer) -> _NewShard:
        del first, grid
        return _NewShard(self, buffer)

    def format_index(self, codes: UintArray, starts: IntArray, sizes: IntArray) -> bytes:
        """Format the index of chunks that are given by their Morton codes; all other chunks are
        absent."""
        channels, within = np.divmod(codes, np.uint64(math.prod(self._morton_grid)))
        positions = compressed_morton.decode(within, self._morton_grid)
        return self._format_tables(
            np.column_stack([channels, positions]).astype(np.int64), starts, sizes
        )

    def write_chunks(
        self, cells: IntArray, append: Callable[[int], None], buffer: FileBuffer
    ) -> bytes:
        ends = [buffer.end]
        for row in range(len(cells)):
            append(row)
            ends.append(buffer.end)
        tables = self._format_tables(cells, np.array(ends[:-1], np.int64), np.diff(ends))
        if not self.index_at_end:
            return tables
        buffer.append(np.frombuffer(tables, np.uint8))
        return b""

    def _format_tables(self, cells: IntArray, starts: IntArray, sizes: IntArray) -> bytes:
        table = np.full((math.prod(self.cells), 2), _ABSENT, "<u8")
        rows = self.rows(cells)
        table[rows, 0], table[rows, 1] = starts, sizes
        data = table.tobytes()
        return data + crc32c(data) if self.has_checksum else data

    def is_whole(self, file: StoredFile) -> bool:
        try:
            raw = self._read_index(file)
            return raw is not None and len(self._parse_index(raw, file)) > 0
        except (CorruptError, TruncatedError):
            return False

    def expected_nbytes(self, files: int, chunks: int) -> int:
        del chunks
        return files * self.index_nbytes


def _parse_table(raw: bytes, num_rows: int) -> UintArray:
    """Parse an index to offset and size of each chunk, shape (n, 2)."""
    return np.frombuffer(raw, "<u8", 2 * num_rows).reshape(-1, 2).astype(np.uint64)


def _places(entries: UintArray) -> IntArray:
    """Return first byte, end and row of each stored chunk."""
    rows = np.flatnonzero(~_is_absent(entries))
    starts, sizes = entries[rows].astype(np.int64).T
    return np.stack([starts, starts + sizes, rows], axis=1)


def _is_absent(table: UintArray) -> BoolArray:
    return np.asarray((table == _ABSENT).all(axis=1))


def _is_wrong(table: UintArray, nbytes: int) -> BoolArray:
    """Return which rows state a place outside of a file."""
    most = np.uint64(nbytes)
    # both numbers are checked before their sum, because the sum may overflow
    return ~_is_absent(table) & (
        (table[:, 0] > most) | (table[:, 1] > most) | (table[:, 0] + table[:, 1] > most)
    )


def _gaps(table: UintArray, low: int, high: int) -> list[tuple[int, int]]:
    """Return first byte and size of each stretch from ``low`` to ``high`` that no row of an index
    covers."""
    rows = table[~_is_absent(table) & ~_is_wrong(table, high)].astype(np.int64)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    ends = np.maximum.accumulate(np.concatenate([[low], rows.sum(axis=1)]))
    starts = np.concatenate([rows[:, 0], [high]])
    return [
        (end, start - end)
        for end, start in zip(ends.tolist(), starts.tolist(), strict=True)
        if start > end
    ]


def _correct_table(
    table: UintArray, checksum: bytes, suspects: Collection[int], low: int, high: int
) -> UintArray | None:  # fmt: skip
    """Return an index with one corrected row that has the stored checksum; None if there is none.

    The row is absent, or its chunk lies where no other row has one. ``suspects`` are rows with
    faults; without any, a chunk beside a gap may have got shorter.
    """
    if not suspects:
        beside = {
            end for start, nbytes in _gaps(table, low, high) for end in (start, start + nbytes)
        }
        suspects = [
            row
            for row, (start, size) in enumerate(table.tolist())
            if start in beside or start + size in beside
        ]
    for row in list(suspects)[:_MAX_SUSPECTS]:
        corrected = table.copy()
        corrected[row] = _ABSENT
        gaps = _gaps(corrected, low, high)
        for entry in (gaps if len(gaps) == 1 else []) + [(int(_ABSENT), int(_ABSENT))]:
            corrected[row] = entry
            if crc32c(corrected.astype("<u8").tobytes()) == checksum:
                return corrected
    return None


def _is_shared(table: UintArray, is_stored: BoolArray, low: int, high: int) -> BoolArray:
    """Return which rows share bytes with another row, or reach beyond the bytes from ``low`` to
    ``high``, where the index begins or ends."""
    rows = np.flatnonzero(is_stored)
    rows = rows[np.argsort(table[rows, 0], kind="stable")]
    starts, ends = table[rows, 0].astype(np.int64), table[rows].sum(axis=1).astype(np.int64)
    is_shared = (starts < low) | (ends > high)
    # sorted by start, a chunk shares bytes with one before it if it starts before their largest end
    is_shared[1:] |= starts[1:] < np.maximum.accumulate(ends)[:-1]
    is_shared[:-1] |= starts[1:] < ends[:-1]
    result = np.zeros(len(table), np.bool_)
    result[rows[is_shared]] = True
    return result


class _NewShard:
    """Writer of a new shard; memory is bounded by a write buffer and the index."""

    def __init__(self, layout: ZarrShards, buffer: FileBuffer) -> None:
        self._layout = layout
        nothing = np.zeros(0, np.int64)
        self._chunks = [(nothing.astype(np.uint64), nothing, nothing)]
        self.buffer = buffer

    def start_stretch(self, codes: UintArray) -> int:
        """Return how many chunks can be appended at once: all, because a shard has no tables
        between its chunks."""
        return len(codes)

    def record(self, codes: UintArray, sizes: IntArray) -> None:
        self._chunks.append(
            (codes, self.buffer.end - int(sizes.sum()) + np.cumsum(sizes) - sizes, sizes)
        )

    def finish(self) -> bytes:
        """Append the index, or return it if it belongs at the start of the file."""
        codes, starts, sizes = (
            np.concatenate(columns) for columns in zip(*self._chunks, strict=True)
        )
        index = self._layout.format_index(codes, starts, sizes)
        if not self._layout.index_at_end:
            return index
        self.buffer.append(np.frombuffer(index, np.uint8))
        return b""
