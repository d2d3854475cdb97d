"""Codec and file layout of WKW for :class:`wkwdask.model.stored_array.StoredArray`, and the
compiled path that reads boxes of blocks.

Reading a box visits files, then pages of a jump table, then batches of blocks::

    box -> files z{Z}/y{Y}/x{X}.wkw -> pages of 32^3 blocks -> batches of stored bytes -> decode_into

A page is an aligned cube of blocks: one range of Morton codes, one slice of the jump table, and one
byte range of the file.
"""  # noqa: E501

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from wkwdask.errors import FormatError
from wkwdask.formats.wkw.boxes import can_read_pairs, read_pairs
from wkwdask.formats.wkw.file import decode_block, encode_block, format_file_head
from wkwdask.formats.wkw.folder import file_path
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.formats.wkw.remote import head_nbytes, read_remote_box, read_remote_pairs
from wkwdask.formats.wkw.stored_file import (
    PAGE_LEN,
    BoxRead,
    WkwFile,
    check_links_of,
    has_small_files,
    open_if_stored,
    read_small_files,
)
from wkwdask.geometry import morton
from wkwdask.kernels.blocks.batch import compress_bound, encode_from, zero_encoding
from wkwdask.kernels.blocks.layout import cubes_table
from wkwdask.model.codec import LZ4_BLOCK, ChunkCodec, Encoding
from wkwdask.model.layout import RewritableShards
from wkwdask.model.stored_array import BoxLayout, StoredArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wkwdask.array_types import AnyArray, ByteArray, IntArray, UintArray
    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import ChunkGrid, Vec4
    from wkwdask.model.store import OpenFile, Store, StoredFile
    from wkwdask.model.stored_array import ChunkPairs
    from wkwdask.model.writing.file_buffer import FileBuffer


def is_wkw(array: Any) -> bool:
    """Return whether a volume is a mag stored as WKW."""
    return isinstance(array, StoredArray) and isinstance(array.layout, WkwFiles)


def layout_of(array: Any) -> WkwFiles:
    """Return the file layout of a WKW mag."""
    assert isinstance(array, StoredArray)
    assert isinstance(array.layout, WkwFiles)
    return array.layout


def header_of(array: Any) -> WkwHeader:
    """Return the header of a WKW mag."""
    return layout_of(array).header


@dataclass(frozen=True, slots=True)
class WkwCodec(ChunkCodec):
    """Codec of blocks: raw, LZ4 or LZ4HC."""

    header: WkwHeader
    level: int = DEFAULT_LEVEL
    """Level of LZ4HC."""

    @property
    def name(self) -> str:
        return self.header.block_type.label

    @property
    def shared_encoding(self) -> Encoding:
        header = self.header
        kind, shape = (
            LZ4_BLOCK if header.is_compressed else "raw",
            (header.num_channels, *(header.block_len,) * 3),
        )
        return Encoding.of(header.dtype.newbyteorder("<"), shape, "zyxc", kind, self.name)

    def largest_nbytes(self, shape: Sequence[int]) -> int:
        del shape
        return compress_bound(self.header.block_nbytes)

    def decode(self, data: bytes, shape: Vec4, source: str, offset: int = 0) -> AnyArray:
        del shape
        return decode_block(data, self.header, source, 0, offset)

    def encode(self, voxels: AnyArray, source: str) -> bytes:
        del source
        return encode_block(voxels, self.header, self.level)

    def encode_batch(
        self,
        array: AnyArray,
        corners: IntArray,
        shape: Vec3,
        output: FileBuffer,
        source: str,
        *,
        stores_zeros: bool,
    ) -> tuple[IntArray, int]:
        del source
        out = output.reserve(len(corners) * compress_bound(self.header.block_nbytes))
        block_type = self.header.block_type
        encoded = encode_from(
            array,
            corners,
            out,
            block_len=shape[0],
            block_type=block_type,
            level=self.level,
            store_zero=stores_zeros,
        )
        output.advance(encoded.nbytes)
        return encoded.sizes, encoded.nonzero


@dataclass(frozen=True, slots=True)
class WkwFiles(RewritableShards, BoxLayout):
    """Layout of a data file: header, jump table if compressed, all blocks in Morton order."""

    is_dense = True
    is_ordered = True
    is_regular = True

    header: WkwHeader
    level: int = DEFAULT_LEVEL
    """Level of LZ4HC."""

    # --------------------------------------------------------------------------------------------
    # reading

    def read_box(self, array: StoredArray, out: AnyArray, low: Vec4, *, fill_zeros: bool) -> int:
        """Fill an array with voxels, file by file; each batch of blocks is decoded in one compiled
        call."""
        header, store, edge = self.header, array.store, self.header.file_len_vx
        (channel, x, y, z), (_, width, height, depth) = low, out.shape
        x_files, y_files, z_files = (
            range(x // edge, -(-(x + width) // edge)),
            range(y // edge, -(-(y + height) // edge)),
            range(z // edge, -(-(z + depth) // edge)),
        )
        if store.is_remote:
            reading = BoxRead(out, (x, y, z), channel, fill_zeros=True)
            nonzero = read_remote_box(
                store, header, reading, list(product(x_files, y_files, z_files))
            )
            if reading.absent:
                array.identity.check(has_absent=True)
            return nonzero
        reading = BoxRead(out, (x, y, z), channel, fill_zeros=fill_zeros)
        try:
            if len(x_files) * len(y_files) * len(z_files) > 1 and has_small_files(header):
                read_one = partial(_read_file, store, header)
                nonzero = read_small_files(
                    store, header, (x_files, y_files, z_files), reading, read_one
                )
            else:
                nonzero = 0
                for index in product(z_files, y_files, x_files):
                    nonzero += _read_file(store, header, reading, index[::-1])
        except FormatError:
            # raises ReplacedError if these are files of another mag
            array.identity.check(has_absent=True)
            raise
        if reading.absent:
            # An absent file means zeros only if the mag itself is still in place and no folder
            # above the file is a broken link.
            array.identity.check(has_absent=True)
            check_links_of(reading.absent.values())
        return nonzero

    def read_pairs(self, array: StoredArray, pairs: ChunkPairs) -> Iterable[int]:
        """Decode blocks into the boxes that they touch; each page of a jump table is one compiled
        call."""
        if not can_read_pairs(array, pairs):
            return range(len(pairs.cells))
        return (
            read_remote_pairs(array, self.header, pairs)
            if array.store.is_remote
            else read_pairs(array, self.header, pairs)
        )

    @contextmanager
    def opened(self, store: Store, key: str, ahead_nbytes: int = 0) -> Iterator[StoredFile | None]:
        """Open a file; the header and jump table of a remote one are read in one request."""
        del ahead_nbytes
        (file,) = store.open_heads([key], head_nbytes(self.header, store))
        with file or nullcontext():
            yield file

    def _opened(self, file: StoredFile) -> WkwFile:
        return WkwFile(cast("OpenFile", file), self.header)

    def locate(self, file: StoredFile, cells: IntArray) -> IntArray:
        """Look up blocks; a WKW file stores every block."""
        bounds, codes = self._opened(file).all_bounds(), self.codes(cells)
        return np.stack(
            [bounds[codes], bounds[codes + np.uint64(1)], np.arange(len(cells))], axis=1
        )

    def has_same_encoding(self, file: StoredFile) -> bool:
        return self._opened(file).header.is_compressed == self.header.is_compressed

    def without_zeros(self, file: StoredFile, places: IntArray) -> IntArray:
        """Omit all blocks if every block is stored like a block of zeros."""
        stored, zero = self._opened(file), self.zero
        starts, ends = places[np.argsort(places[:, 0], kind="stable"), :2].T
        # Only runs of adjacent blocks are compared in one read, so cut where the next block does
        # not start at the end of the last.
        cuts = (
            [0, *(np.flatnonzero(starts[1:] != ends[:-1]) + 1).tolist(), len(starts)]
            if len(starts)
            else [0]
        )
        is_zero = all(
            stored.is_all_zero(np.append(starts[a:b], ends[b - 1]), zero) for a, b in pairwise(cuts)
        )
        return places[:0] if is_zero else places

    # --------------------------------------------------------------------------------------------
    # writing

    @property
    def zero(self) -> ByteArray:
        """Stored bytes of a block of zeros."""
        return zero_encoding(self.header.block_nbytes, self.header.block_type, self.level)

    def codes(self, cells: IntArray) -> UintArray:
        return morton.encode(cells[:, 1:] % self.header.file_len)

    def ordered_cells(self, low: Vec4, high: Vec4) -> tuple[UintArray, IntArray]:
        length = self.header.file_len
        x, y, z = (n // length * length for n in low[1:])
        codes, places = morton.ordered_box(
            (low[1] - x, low[2] - y, low[3] - z), (high[1] - x, high[2] - y, high[3] - z)
        )
        return codes, np.pad(places + np.array((x, y, z)), ((0, 0), (1, 0)))

    def codes_per_file(self, grid: ChunkGrid) -> int:
        del grid
        return self.header.blocks_per_file

    @property
    def head_nbytes(self) -> int:
        return self.header.smallest_data_offset

    def new_shard(self, first: Vec4, grid: ChunkGrid, buffer: FileBuffer) -> _NewShard:
        del first, grid
        return _NewShard(self.header, self.zero, buffer)

    def write_chunks(
        self, cells: IntArray, append: Callable[[int], None], buffer: FileBuffer
    ) -> bytes:
        shard, codes = _NewShard(self.header, self.zero, buffer), self.codes(cells)
        for row in np.argsort(codes).tolist():
            code = codes[row : row + 1]
            shard.start_stretch(code)
            start = buffer.end
            append(row)
            shard.record(code, np.array([buffer.end - start]))
        return shard.finish()

    def is_whole(self, file: StoredFile) -> bool:
        """Return whether header and jump table are valid."""
        try:
            self._opened(file).all_bounds()
        except FormatError:
            return False
        return True

    def expected_nbytes(self, files: int, chunks: int) -> int:
        """Estimate the bytes of headers, jump tables and blocks of zeros."""
        zeros = max(0, files * self.header.blocks_per_file - chunks)
        return zeros * self.zero.size + files * self.head_nbytes


class _NewShard:
    """New data file, written in Morton order; blocks that are never appended are stored as zeros.

    Header and jump table are written last, because they contain the sizes of all blocks::

        | header, jump table | block 0 | zeros | zeros | block 3 | ...
                               append    _fill           append
    """

    def __init__(self, header: WkwHeader, zero: ByteArray, buffer: FileBuffer) -> None:
        self._header, self._zero = header, zero
        self._sizes = np.full(header.blocks_per_file, zero.size, np.int64)
        self._next = 0
        self.buffer = buffer

    def start_stretch(self, codes: UintArray) -> int:
        """Write zeros up to the first block, and return how many of the blocks follow it without a
        gap."""
        self._fill(int(codes[0]))
        ends = np.flatnonzero(np.diff(codes) != 1)
        return int(ends[0]) + 1 if len(ends) else len(codes)

    def _fill(self, code: int) -> None:
        if code > self._next:
            self.buffer.repeat(self._zero, code - self._next)
            self._next = code

    def record(self, codes: UintArray, sizes: IntArray) -> None:
        """Record the sizes of appended blocks."""
        self._next = int(codes[-1]) + 1
        self._sizes[self._next - len(codes) : self._next] = sizes

    def finish(self) -> bytes:
        """Write zeros up to the end of the file, and return header and jump table."""
        self._fill(self._header.blocks_per_file)
        return format_file_head(self._header, self._sizes)


def _read_file(store: Store, header: WkwHeader, reading: BoxRead, index: Vec3) -> int:
    """Fill the part of the array that lies in one file, and return the number of blocks that are
    not all zero."""
    edge, topleft, shape = header.file_len_vx, reading.topleft, reading.out.shape
    corner = (
        index[0] * edge - topleft[0],
        index[1] * edge - topleft[1],
        index[2] * edge - topleft[2],
    )
    file = open_if_stored(store, index, header)
    if file is None:
        reading.absent[index[1], index[2]] = file_path(store.url, index)
        reading.zeros.add(cubes_table(corner, edge), edge)
        return 0
    if header.file_len <= PAGE_LEN:
        return file.read_into(reading, 0, corner)
    return sum(file.read_into(reading, page, first) for page, first in file.pages(corner, shape))
