"""Runs: encoded blocks with their Morton codes, from a part file or a stored shard, and the join of
runs into a shard.

An aligned cube of blocks is one contiguous range of codes, and therefore one byte range of the
file. Parts of coarser mags can be boxes whose codes interleave; the join then permutes whole
segments. A block of size 0 is an all-zero block without bytes. Nothing is decoded here.

    run a   codes 0 1 2 3         run b   codes 4 5 8 9         run c   codes 6 7 10 11
    joined  |a: 0 1 2 3|b: 4 5|c: 6 7|b: 8 9|c: 10 11|          5 segments, each copied as one byte range

A part file is a run followed by its tables: ``payload | codes (uint64) | sizes (uint64) | footer``.
"""  # noqa: E501

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import IntArray, UintArray
    from wkwdask.model.layout import ShardFile
    from wkwdask.model.store import Store, StoredFile
    from wkwdask.model.writing.file_buffer import FileBuffer

_MAGIC = b"WKWRUN01"
_FOOTER = struct.Struct("<8sQQI")  # magic, number of blocks, payload bytes, crc32 of the tables
FOOTER_NBYTES = _FOOTER.size


@dataclass(frozen=True, slots=True)
class RunTable:
    """Codes, sizes and offsets of the blocks of a run."""

    codes: UintArray
    """Morton codes of the blocks in their file, in stored order, shape (n,)."""
    sizes: IntArray
    """Encoded size of each block [bytes], 0 for an all-zero block, shape (n,)."""
    starts: IntArray | None = None
    """Offset of each block [bytes], shape (n,); None if blocks follow each other from byte 0."""

    @property
    def payload_nbytes(self) -> int:
        """Total size of all blocks."""
        return int(self.sizes.sum())

    def between(self, low: int, high: int) -> RunTable:
        """Return the blocks with codes from ``low`` to below ``high``, their codes counted from
        ``low``."""
        is_inside = (self.codes >= low) & (self.codes < high)
        starts = np.cumsum(self.sizes) - self.sizes if self.starts is None else self.starts
        return RunTable(
            self.codes[is_inside] - np.uint64(low), self.sizes[is_inside], starts[is_inside]
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive blocks of a file that are copied from one place."""

    run: int
    """Index of the run with the blocks, -1 for all-zero blocks."""
    offset: int
    """Offset in the payload of that run [bytes]."""
    nbytes: int
    """Bytes to copy; 0 for all-zero blocks."""
    num_blocks: int


def format_run_tail(table: RunTable) -> bytes:
    """Return the tail of a part file: codes, sizes, footer."""
    tables = table.codes.astype("<u8").tobytes() + table.sizes.astype("<u8").tobytes()
    return tables + _FOOTER.pack(_MAGIC, table.codes.size, table.payload_nbytes, zlib.crc32(tables))


def run_tail_nbytes(footer: bytes, file_nbytes: int, source: str) -> int:
    """Return the length of the tail of a part file, given its footer."""
    if len(footer) < FOOTER_NBYTES:
        raise TruncatedError(
            f"{source}: expected a part file of at least {FOOTER_NBYTES} bytes, found {len(footer)}"
        )
    magic, num_blocks, payload_nbytes, _ = _FOOTER.unpack(footer)
    if magic != _MAGIC:
        raise CorruptError(
            f"{source}: byte {file_nbytes - FOOTER_NBYTES}: expected the footer of a part file, "
            f"found {magic!r}"
        )
    tail = 16 * int(num_blocks) + FOOTER_NBYTES
    if payload_nbytes + tail != file_nbytes:
        raise TruncatedError(
            f"{source}: expected {payload_nbytes + tail} bytes as its footer states, found "
            f"{file_nbytes}"
        )
    return tail


def parse_run_tail(raw: bytes, source: str) -> RunTable:
    """Parse codes and sizes from the tail of a part file."""
    _, num_blocks, _, crc = _FOOTER.unpack(raw[-FOOTER_NBYTES:])
    if zlib.crc32(raw[:-FOOTER_NBYTES]) != crc:
        raise CorruptError(f"{source}: the tables of the part file are damaged")
    values = np.frombuffer(raw, "<u8", 2 * num_blocks)
    return RunTable(values[:num_blocks].astype(np.uint64), values[num_blocks:].astype(np.int64))


def join_order(runs: Sequence[RunTable], blocks_per_file: int) -> tuple[IntArray, list[Segment]]:
    """Plan the join of runs into one file: the size of each block in the order of codes, and the
    segments to copy.

    Examples
    --------
    >>> a = RunTable(np.array([0, 1], np.uint64), np.array([10, 20]))
    >>> b = RunTable(np.array([3], np.uint64), np.array([5]))
    >>> sizes, segments = join_order([a, b], 4)
    >>> sizes.tolist(), [(s.run, s.offset, s.nbytes) for s in segments]
    ([10, 20, 0, 5], [(0, 0, 30), (-1, 0, 0), (1, 0, 5)])
    """
    # One entry per code: the run that has the block (-1: none), and its offset there.
    run_of = np.full(blocks_per_file, -1, np.int64)
    offset_of = np.zeros(blocks_per_file, np.int64)
    sizes = np.zeros(blocks_per_file, np.int64)
    for index, run in enumerate(runs):
        if run.codes.size and int(run.codes.max()) >= blocks_per_file:
            raise CorruptError(
                f"run {index} contains block {int(run.codes.max())} of a file with "
                f"{blocks_per_file} blocks"
            )
        if (run_of[run.codes] != -1).any() or np.unique(run.codes).size != run.codes.size:
            raise CorruptError(f"run {index} contains a block that it or another run already has")
        run_of[run.codes] = index
        sizes[run.codes] = run.sizes
        offset_of[run.codes] = (
            np.cumsum(run.sizes) - run.sizes if run.starts is None else run.starts
        )
    run_of[sizes == 0] = -1
    # A segment continues as long as the next code comes from the same run, and directly follows in
    # it.
    ends = offset_of + sizes
    continues = (run_of[1:] == run_of[:-1]) & ((run_of[1:] == -1) | (offset_of[1:] == ends[:-1]))
    starts = np.concatenate([[0], np.flatnonzero(~continues) + 1, [blocks_per_file]])
    segments = []
    for first, last in zip(starts[:-1].tolist(), (starts[1:] - 1).tolist(), strict=True):
        run_index = int(run_of[first])
        offset = int(offset_of[first]) if run_index >= 0 else 0
        nbytes = int(ends[last]) - offset if run_index >= 0 else 0
        segments.append(Segment(run_index, offset, nbytes, last - first + 1))
    return sizes, segments


# ------------------------------------------------------------------------------------------------
# part files and shards


@dataclass(frozen=True, slots=True)
class Run:
    """Encoded chunks that can be copied."""

    table: RunTable
    file: StoredFile
    """File with the chunks."""


def open_run(file: StoredFile) -> Run:
    """Read the tables of a part file."""
    nbytes = file.nbytes or 0
    tail = run_tail_nbytes(file.read_end(FOOTER_NBYTES) or b"", nbytes, file.name)
    return Run(parse_run_tail(file.read_end(tail) or b"", file.name), file)


def close_part_file(output: FileBuffer, table: RunTable) -> tuple[int, int]:
    """Write the tail of a part file and publish it; returns size and checksum."""
    output.append(np.frombuffer(format_run_tail(table), np.uint8))
    output.close().publish()
    return output.end, output.checksum


def is_whole_part_file(store: Store, name: str, nbytes: int, checksum: int) -> bool:
    """Return whether a part file exists with all its bytes."""
    (state,) = store.states([name])
    if state is None or state.nbytes != nbytes:
        return False
    (data,) = store.read_whole([name], nbytes)
    return data is not None and zlib.crc32(data) == checksum


def copy_runs(shard: ShardFile, runs: Sequence[Run], num_codes: int) -> None:
    """Append the chunks of all runs to a shard, in ascending order of codes."""
    sizes, segments = join_order([run.table for run in runs], num_codes)
    low = 0
    for is_stored, group in groupby(segments, lambda segment: segment.run >= 0):
        members = list(group)
        high = low + sum(segment.num_blocks for segment in members)
        if is_stored:
            _copy_segments(
                shard, runs, members, np.arange(low, high, dtype=np.uint64), sizes[low:high]
            )
        low = high


def _copy_segments(
    shard: ShardFile,
    runs: Sequence[Run],
    segments: Sequence[Segment],
    codes: UintArray,
    sizes: IntArray,
) -> None:
    """Append chunks with consecutive codes from several places, interrupted where the shard stores
    something in between."""
    remaining = [
        (runs[segment.run].file, segment.offset, segment.nbytes) for segment in reversed(segments)
    ]
    while len(codes):
        count = shard.start_stretch(codes)
        missing = int(sizes[:count].sum())
        while missing:
            file, offset, nbytes = remaining.pop()
            copied = min(nbytes, missing)
            shard.buffer.copy(file, offset, copied)
            missing -= copied
            if copied < nbytes:
                remaining.append((file, offset + copied, nbytes - copied))
        shard.record(codes[:count], sizes[:count])
        codes, sizes = codes[count:], sizes[count:]


def publish_shard(shard: ShardFile, *, is_in_place: bool) -> None:
    """Write the tables of a shard and publish it."""
    head = shard.finish()
    file = shard.buffer.close()
    if head:
        file.write(head, 0)
    file.publish(flush_folder=is_in_place, keep_equal=True)
