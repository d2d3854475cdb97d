"""Read WKW data files: header, pages of the jump table, batches of stored blocks. Many files of one
block each are read in one call.

Open files and pages of their jump tables are cached within fixed bounds. A cached file is
identified by inode, modification time and size, so that a replaced file is opened again.
"""

from __future__ import annotations

import itertools
import math
import stat
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wkwdask.errors import CorruptError, MissingError
from wkwdask.formats.marks import HEADER_NAME
from wkwdask.formats.wkw.file import (
    MAX_LZ4_RATIO,
    decode_block,
    parse_jump_table,
    raw_block_bounds,
    table_range,
)
from wkwdask.formats.wkw.folder import file_name, file_path, open_data_file
from wkwdask.formats.wkw.header import (
    HEADER_NBYTES,
    BlockType,
    WkwHeader,
    format_header,
    parse_header,
)
from wkwdask.geometry import morton
from wkwdask.kernels.blocks.batch import ZeroFill, compress_bound, decode_into, zero_encoding
from wkwdask.kernels.blocks.checks import first_invalid_lz4
from wkwdask.kernels.blocks.layout import CODE, OFFSET, SIZE, START, X, Z, cubes_table
from wkwdask.kernels.blocks.locate import BlockLocations, locate_blocks
from wkwdask.kernels.blocks.read import BlockFile, array_memory, read_blocks
from wkwdask.store.local import ABSENT
from wkwdask.store.lru import LruCache, OpenFiles
from wkwdask.store.paths import dirname
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.array_types import AnyArray, BoolArray, ByteArray, IntArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.kernels.blocks.batch import DecodeResult
    from wkwdask.model.store import OpenFile, Store
    from wkwdask.model.writing.file_buffer import FileBuffer

PAGE_LEN = 32
# 256 KiB: the whole table of a file of 32^3 blocks, or that of an aligned cube of blocks in a
# larger file
PAGE_ENTRIES = PAGE_LEN**3
_PAGES_PER_FILE = 4
_OPEN_FILES = 64
_BATCH_NBYTES = 8 << 20
_CHECKED_NBYTES = 1 << 20  # of copied blocks that are checked together
_MAX_STORED_NBYTES = (1 << 31) - 1  # the functions of LZ4 take sizes as int
GAP_NBYTES = 16 << 10  # reading across a smaller gap is cheaper than a second call
_NO_CUBES = np.zeros((0, Z + 1), np.int64)
_buffers = threading.local()


class BoxRead:
    """State of one read of a box into an array (c, x, y, z)."""

    __slots__ = ("absent", "first_channel", "memory", "out", "topleft", "zeros")

    def __init__(
        self, out: AnyArray, topleft: Vec3, first_channel: int, *, fill_zeros: bool
    ) -> None:
        self.out = out
        self.topleft = topleft
        """Voxel of the mag at voxel 0 of the array."""
        self.first_channel = first_channel
        """Stored channel at channel 0 of the array."""
        self.zeros = ZeroFill(out, at_once=fill_zeros)
        """Regions of the array without stored voxels, filled with zeros."""
        self.absent: dict[tuple[int, int], str] = {}
        """One absent file for each row along x, by (y, z); their folders are checked for broken
        links after the read."""
        self.memory = array_memory(out, first_channel)

    def decode(self, memory: ByteArray, blocks: IntArray, header: WkwHeader) -> DecodeResult:
        """Decode blocks in memory into the array."""
        return decode_into(
            memory,
            blocks,
            self.out,
            block_len=header.block_len,
            num_channels=header.num_channels,
            first_channel=self.first_channel,
            block_type=header.block_type,
            fill_zeros=self.zeros.at_once,
        )


class Batch(NamedTuple):
    """Blocks of one page of a jump table that are read together."""

    located: BlockLocations
    page: int
    rows: slice
    """Rows of its blocks in ``located.blocks``."""
    ranges: slice
    """Rows of its byte ranges in ``located.ranges``."""
    nbytes: int
    """Memory for the ranges."""


class WkwFile:
    """One open data file."""

    def __init__(self, file: OpenFile, mag_header: WkwHeader) -> None:
        self.file = file
        self.path = file.name
        self.nbytes = file.nbytes
        self.mag_header = mag_header
        self.header = parse_header(file.read_some(HEADER_NBYTES, 0), file.name, is_data_file=True)
        mag_header.check_same_mag(self.header, file.name)
        self._pages: LruCache[IntArray] = LruCache(_PAGES_PER_FILE)
        header, descriptor = self.header, file.descriptor
        self._blocks = (
            None
            if descriptor is None
            else BlockFile(descriptor, header.block_len, header.num_channels, header.is_compressed)
        )

    def read_into(self, reading: BoxRead, page: int, corner: Vec3) -> int:
        """Read and decode the blocks of one page of the jump table that an array covers, and return
        how many are not all zero.

        ``corner`` is the first voxel of the page's cube of blocks, counted from the array.
        """
        header, zeros, nonzero = self.header, reading.zeros, -1
        cube_len = min(header.file_len, PAGE_LEN)
        if self._blocks is not None and reading.memory is not None:
            nonzero = read_blocks(
                self._blocks,
                self.page(page),
                cube_len,
                corner,
                reading.memory,
                fill_zeros=zeros.at_once,
            )
            if nonzero >= 0 and zeros.at_once:
                return nonzero
        low, high = cells = self.cells(reading, corner)
        if nonzero < 0:
            return self._read_in_steps(reading, page, cells, corner)
        step = header.block_len
        # the table is of cubes without data
        zeros.add_decoded(
            _NO_CUBES if nonzero else cubes_table(corner, step, low, high), step, nonzero
        )
        return nonzero

    def cells(self, reading: BoxRead, corner: Vec3) -> tuple[Vec3, Vec3]:
        """Return the first block of a page that an array covers, and the end."""
        step, shape, cube_len = (
            self.header.block_len,
            reading.out.shape,
            min(self.header.file_len, PAGE_LEN),
        )
        return (
            (max(0, -corner[0]) // step, max(0, -corner[1]) // step, max(0, -corner[2]) // step),
            (
                min(cube_len, -(-(shape[1] - corner[0]) // step)),
                min(cube_len, -(-(shape[2] - corner[1]) // step)),
                min(cube_len, -(-(shape[3] - corner[2]) // step)),
            ),
        )

    def _read_in_steps(
        self, reading: BoxRead, page: int, cells: tuple[Vec3, Vec3], corner: Vec3
    ) -> int:
        """Read and decode blocks of any file in batches, and raise an error that names what is
        broken."""
        return sum(self.read_batch(batch, reading) for batch in self.batches(page, cells, corner))

    def batches(
        self, page: int, cells: tuple[Vec3, Vec3], corner: Vec3, gap_nbytes: int = GAP_NBYTES
    ) -> Iterator[Batch]:
        """Yield the batches in which blocks of a box are read."""
        located = locate_blocks(
            self.page(page), *cells, self.header.block_len, corner, gap_nbytes, _BATCH_NBYTES
        )
        self._check_sizes(located, page)
        for (first, first_range, nbytes), (last, last_range, _) in itertools.pairwise(
            located.batches.tolist()
        ):
            yield Batch(located, page, slice(first, last), slice(first_range, last_range), nbytes)

    def read_batch(self, batch: Batch, reading: BoxRead) -> int:
        """Read and decode a batch of blocks, and return how many are not all zero."""
        header, blocks = self.header, batch.located.blocks[batch.rows]
        memory = read_buffer(batch.nbytes)
        self.file.read_ranges(batch.located.ranges[batch.ranges], memory)
        decoded = reading.decode(memory, blocks, header)
        if decoded.broken >= 0:  # the call stopped at this block
            what = (
                "are not an LZ4 block"
                if decoded.broken_nbytes < 0
                else f"decode to {decoded.broken_nbytes} bytes"
            )
            where, size = self._where(batch.located, batch.page, batch.rows.start + decoded.broken)
            raise CorruptError(
                f"{where}: {size} stored bytes {what}, expected {header.block_nbytes} decoded bytes"
            )
        reading.zeros.add_decoded(blocks, header.block_len, decoded.nonzero)
        return decoded.nonzero

    def pages(self, corner: Vec3, shape: tuple[int, ...]) -> Iterator[tuple[int, Vec3]]:
        """Yield the pages that an array covers, with the first voxel of each; ``corner`` is the
        first voxel of the file, counted from the array."""
        # Negative numbers round towards minus infinity: -(-n // edge) is the ceiling, and max(0,
        # -at) the part of the file before the array.
        edge, page_edge = (
            self.header.file_len_vx,
            min(self.header.file_len, PAGE_LEN) * self.header.block_len,
        )
        x_pages, y_pages, z_pages = (
            range(max(0, -at) // page_edge, -(-min(edge, n - at) // page_edge))
            for at, n in zip(corner, shape[1:], strict=True)
        )
        for z, y, x in itertools.product(z_pages, y_pages, x_pages):
            yield (
                _page_number(x, y, z),
                (corner[0] + x * page_edge, corner[1] + y * page_edge, corner[2] + z * page_edge),
            )

    def bounds_of(self, codes: IntArray) -> IntArray:
        """Return start and end of blocks with ascending codes, shape (n, 2)."""
        pages = codes // PAGE_ENTRIES
        parts = [
            (self.page(number), codes[pages == number] - number * PAGE_ENTRIES)
            for number in np.unique(pages).tolist()
        ]
        return np.concatenate(
            [np.stack([page[places], page[places + 1]], axis=1) for page, places in parts]
        )

    def bounds(self, first: int, count: int) -> IntArray:
        """Return the boundaries of consecutive blocks within one page of the jump table."""
        page, place = divmod(first, PAGE_ENTRIES)
        return self.page(page)[place : place + count + 1]

    def all_bounds(self) -> IntArray:
        """Return the boundaries of all blocks."""
        pages = [
            self.page(number) for number in range(-(-self.header.blocks_per_file // PAGE_ENTRIES))
        ]
        return np.concatenate([pages[0], *(page[1:] for page in pages[1:])])

    def is_all_zero(self, bounds: IntArray, zero: ByteArray) -> bool:
        """Return whether consecutive stored blocks all equal a stored block of zeros; reading stops
        at the first that does not."""
        if (np.diff(bounds) != zero.size).any():
            return False
        step = max(1, _BATCH_NBYTES // zero.size // 8)
        for first in range(0, len(bounds) - 1, step):
            count = min(step, len(bounds) - 1 - first)
            stored = read_buffer(count * zero.size)
            self.file.read_into(stored, int(bounds[first]))
            if (stored.reshape(count, zero.size) != zero).any():
                return False
        return True

    def copy_blocks(self, first: int, bounds: IntArray, output: FileBuffer) -> None:
        """Append consecutive stored blocks to a new file; raises CorruptError for one that does not
        decode to its length."""
        if not self.header.is_compressed:
            output.copy(self.file, int(bounds[0]), int(bounds[-1] - bounds[0]))
            return
        for code, part in self._checked_parts(first, bounds):
            room = output.reserve(int(part[-1] - part[0]))
            self._read_checked(code, part, room)
            output.advance(room.size)

    def _checked_parts(self, first: int, bounds: IntArray) -> Iterator[tuple[int, IntArray]]:
        """Yield the code of the first block and the boundaries of blocks that are read together,
        while they are in the CPU cache."""
        sizes, largest = np.diff(bounds), compress_bound(self.header.block_nbytes)
        for n in np.flatnonzero(sizes > largest)[:1].tolist():  # before memory is allocated for it
            raise CorruptError(
                f"{self.path}: block {first + n} at byte {bounds[n]}: {sizes[n]} stored bytes, "
                f"expected at most {largest}"
            )
        start = 0
        while start < len(sizes):
            stop = max(
                start + 1,
                int(np.searchsorted(bounds, bounds[start] + _CHECKED_NBYTES, "right")) - 1,
            )
            yield first + start, bounds[start : stop + 1]
            start = stop

    def _read_checked(self, first: int, bounds: IntArray, memory: ByteArray) -> None:
        self.file.read_into(memory, int(bounds[0]))
        places, done = np.stack([bounds[:-1] - bounds[0], np.diff(bounds)], axis=1), 0
        while (broken := first_invalid_lz4(memory, places[done:], self.header.block_nbytes)) >= 0:
            start, nbytes = places[done + broken].tolist()
            data, code, offset = (
                memory[start : start + nbytes].tobytes(),
                first + done + broken,
                int(bounds[done + broken]),
            )
            decode_block(data, self.header, self.path, code, offset)  # raises the error
            done += broken + 1

    def nonzero_codes(self, level: int) -> IntArray:
        """Return the Morton codes of all blocks except those stored as the encoder stores zeros; no
        block is decoded."""
        return np.flatnonzero(self.are_nonzero(self.all_bounds(), level))

    def are_nonzero(self, bounds: IntArray, level: int) -> BoolArray:
        """Return which of some consecutive blocks are not stored as the encoder stores zeros."""
        header = self.header
        is_nonzero = np.ones(len(bounds) - 1, np.bool_)
        if header.is_compressed:
            zero = zero_encoding(header.block_nbytes, header.block_type, level)
            candidates = np.flatnonzero(np.diff(bounds) == zero.size)
            for run in np.split(candidates, np.flatnonzero(np.diff(candidates) != 1) + 1):
                is_nonzero[run] = len(run) > 0 and not self.is_all_zero(
                    bounds[run[0] : run[-1] + 2], zero
                )
        return is_nonzero

    def _where(self, located: BlockLocations, page: int, n: int) -> tuple[str, int]:
        """Name a block in an error message, with its stored size."""
        row = located.blocks[n]
        return (
            f"{self.path}: block {page * PAGE_ENTRIES + int(row[CODE])} at byte {int(row[OFFSET])}",
            int(row[SIZE]),
        )

    def _check_sizes(self, located: BlockLocations, page: int) -> None:
        """Raise CorruptError for stored sizes that LZ4 cannot have, before memory is allocated for
        them."""
        header = self.header
        if not header.is_compressed:
            return
        sizes = located.blocks[:, SIZE]
        if header.block_nbytes > MAX_LZ4_RATIO * int(sizes[located.smallest]):
            where, size = self._where(located, page, located.smallest)
            raise CorruptError(
                f"{where}: {size} stored bytes cannot decode to {header.block_nbytes} bytes"
            )
        if sizes[located.largest] > _MAX_STORED_NBYTES:
            where, size = self._where(located, page, located.largest)
            raise CorruptError(
                f"{where}: {size} stored bytes, expected at most {_MAX_STORED_NBYTES}"
            )

    def page(self, number: int) -> IntArray:
        """Return the block boundaries of one page of the jump table; each page is read and checked
        once."""
        page = self._pages.get(number)
        if page is None:
            header = self.header
            first = number * PAGE_ENTRIES
            count = min(PAGE_ENTRIES, header.blocks_per_file - first)
            if header.is_compressed:
                offset, nbytes = table_range(first, count)
                page = parse_jump_table(
                    self.file.read_some(nbytes, offset),
                    header,
                    first,
                    count,
                    self.nbytes,
                    self.path,
                )
            else:
                page = raw_block_bounds(header, first, count, self.nbytes, self.path)
            self._pages.put(number, page)
        return page


@lru_cache(maxsize=1024)
def _page_number(x: int, y: int, z: int) -> int:
    """Return the number of a jump table page, given the index of its cube of blocks within the
    file."""
    return int(morton.encode([(x, y, z)])[0])


_open_files: OpenFiles[tuple[tuple[int, int, int], WkwFile]] = OpenFiles(_OPEN_FILES)


def open_if_stored(store: Store, index: Vec3, mag_header: WkwHeader) -> WkwFile | None:
    """Open a local data file or return it from the cache, None if it is absent: then the caller
    must also call :func:`check_links_of`."""
    name = file_name(index)
    try:
        status = store.status(name, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    path = store.path_of(name)
    if stat.S_ISLNK(status.st_mode):
        try:
            status = store.status(name)
        except (FileNotFoundError, NotADirectoryError):
            raise _dangling(path) from None
    if not stat.S_ISREG(status.st_mode):
        raise CorruptError(f"{path}: not a regular file")
    # A rename onto the path changes the inode, a rewrite in place the time or size: either way, the
    # cached jump table is stale.
    signature = (status.st_ino, status.st_mtime_ns, status.st_size)
    cached = _open_files.get(path)
    if (
        cached is not None
        and cached[0] == signature
        and (cached[1].mag_header is mag_header or cached[1].mag_header == mag_header)
    ):
        return cached[1]
    file = WkwFile(open_data_file(store, index), mag_header)
    _open_files.put(path, (signature, file))
    return file


def check_links_of(paths: Iterable[str]) -> None:
    """Raise MissingError if a folder of absent files is a broken symbolic link: then their voxels
    are not zeros."""
    rows = {dirname(path) for path in paths}
    for folder in {*rows, *(dirname(row) for row in rows)}:
        if store_at(folder).link_target() and not store_at(folder).exists():
            raise _dangling(folder)


def missing_mag(header_path: str) -> MissingError:
    """Return the error for a mag that vanished after it was opened."""
    return MissingError(
        f"{header_path}: not found: the mag is gone or its file system is not mounted"
    )


def _dangling(path: str) -> MissingError:
    return MissingError(
        f"{path}: a symbolic link to a missing {'file' if path.endswith('.wkw') else 'folder'}"
    )


def read_buffer(nbytes: int) -> ByteArray:
    """Return this thread's read buffer, grown if necessary."""
    memory: ByteArray | None = getattr(_buffers, "memory", None)
    if memory is None or memory.size < nbytes:
        memory = np.empty(max(nbytes, 1 << 20), np.uint8)
        _buffers.memory = memory
    return memory[:nbytes]


# ------------------------------------------------------------------------------------------------
# files of one block

# WEBKNOSSOS exports annotations as files of one block: opening each of them separately would cost
# more than decoding it.
_SMALL_NBYTES = 512 << 10  # decoding a larger file takes longer than opening it
SMALL_BATCH_NBYTES = 2 << 20  # stays in the cache between reading and decoding
_MAX_FILES = 4096  # in one batch, including absent files
# headers of one mag agree in the first 8 bytes, except in the block type
_COMMON_NBYTES, _BLOCK_TYPE_AT = 8, 5
_LZ4_TYPES = (BlockType.LZ4, BlockType.LZ4HC)


def has_small_files(header: WkwHeader) -> bool:
    """Return whether the files of a mag are small enough to read many in one call."""
    return header.file_len == 1 and max_file_nbytes(header) <= _SMALL_NBYTES


def max_file_nbytes(header: WkwHeader) -> int:
    return header.smallest_data_offset + (
        compress_bound(header.block_nbytes) if header.is_compressed else header.block_nbytes
    )


def read_small_files(
    store: Store,
    header: WkwHeader,
    grid: tuple[range, range, range],
    reading: BoxRead,
    read_one: Callable[[BoxRead, Vec3], int],
) -> int:
    """Read all files of a box in batches, and return the number of blocks that are not all zero.

    ``read_one`` reads any file that is not plainly valid, or raises the exact error.
    """
    max_nbytes = max_file_nbytes(header)
    memory = read_buffer(max(SMALL_BATCH_NBYTES, max_nbytes))
    indices = ((x, y, z) for z in grid[2] for y in grid[1] for x in grid[0])
    nonzero, remaining = 0, math.prod(map(len, grid))
    while remaining:
        batch = read_batch(store, indices, max_nbytes, memory)
        remaining -= len(batch)
        index, start, size = np.split(np.array(batch, np.int64), (3, 4), axis=1)
        table = np.zeros((len(index), Z + 1), np.int64)
        table[:, X : Z + 1] = index * header.block_len - reading.topleft
        absent, is_valid = size[:, 0] == ABSENT, find_blocks(table, start, size, header, memory)
        decoded, broken = _decode(memory, table[is_valid], header, reading)
        nonzero += decoded
        if absent.any():
            reading.absent.update(
                {(y, z): file_path(store.url, (x, y, z)) for x, y, z in index[absent].tolist()}
            )
            reading.zeros.add(table[absent], header.block_len)
        for x, y, z in broken + index[~is_valid & ~absent].tolist():
            # after the batch, because read_one uses the same buffer
            nonzero += read_one(reading, (x, y, z))
    return nonzero


def read_batch(
    store: Store, indices: Iterator[Vec3], max_nbytes: int, memory: ByteArray
) -> list[tuple[int, int, int, int, int]]:
    """Read files until the buffer is full; return index, offset in the buffer and size of each."""
    requested: list[Vec3] = []

    def names() -> Iterator[str]:
        for x, y, z in itertools.islice(indices, _MAX_FILES):
            requested.append((x, y, z))
            yield f"z{z}/y{y}/x{x}.wkw"  # without a call: files are small

    try:
        places = store.read_small(names(), max_nbytes, memory.data)
    except (FileNotFoundError, NotADirectoryError):
        raise missing_mag(store.path_of(HEADER_NAME)) from None
    return [(*index, *place) for index, place in zip(requested, places, strict=True)]


def find_blocks(
    table: IntArray, start: IntArray, size: IntArray, header: WkwHeader, memory: ByteArray
) -> BoolArray:
    """Fill in the location of the block of each file; return which files have a matching header and
    a complete block."""
    table_end = HEADER_NBYTES + 8 * header.is_compressed
    heads = memory[np.minimum(start + np.arange(HEADER_NBYTES + 8), len(memory) - 1)]
    is_same = heads[:, :_COMMON_NBYTES] == np.frombuffer(
        format_header(header)[:_COMMON_NBYTES], np.uint8
    )
    if header.is_compressed:
        is_same[:, _BLOCK_TYPE_AT] = np.isin(heads[:, _BLOCK_TYPE_AT], _LZ4_TYPES)
    # Bytes 8 to 24 are dataOffset and, if compressed, the only entry of the jump table: start and
    # end of the block.
    offset, end = heads[:, _COMMON_NBYTES:].copy().view("<i8").T
    end = end if header.is_compressed else offset + header.block_nbytes
    table[:, OFFSET], table[:, SIZE], table[:, START] = offset, end - offset, start[:, 0] + offset
    is_inside = (
        (size[:, 0] >= table_end) & (offset >= table_end) & (offset <= end) & (end <= size[:, 0])
    )
    is_valid: BoolArray = (
        is_same.all(axis=1) & is_inside & (table[:, SIZE] >= header.block_nbytes / MAX_LZ4_RATIO)
    )
    return is_valid


def _decode(
    memory: ByteArray, table: IntArray, header: WkwHeader, reading: BoxRead
) -> tuple[int, list[list[int]]]:
    """Decode all blocks; return how many are not all zero, and the indices of files with a broken
    block."""
    nonzero, broken = 0, []
    while len(table):
        decoded = reading.decode(memory, table, header)
        stop = len(table) if decoded.broken < 0 else decoded.broken
        reading.zeros.add_decoded(table[:stop], header.block_len, decoded.nonzero)
        nonzero += decoded.nonzero
        if decoded.broken >= 0:
            broken.append(((table[stop, X : Z + 1] + reading.topleft) // header.block_len).tolist())
        table = table[stop + 1 :]
    return nonzero, broken
