"""Runs: encoded blocks and their Morton codes, cut out of a file or on their way into one.

An aligned cube of blocks is one contiguous range of codes, and so one byte range of the file. Parts of coarser mags can be boxes whose
codes interleave; joining then permutes whole segments. A block of size 0 stands for an all-zero block that takes no bytes.
Nothing is decoded here. A part file is a run with its codes and sizes behind it, which a task leaves for the one that joins runs into a shard.
"""

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

    import numpy.typing as npt

    from wkwdask.model.file_buffer import FileBuffer
    from wkwdask.model.layout import ShardFile
    from wkwdask.model.store import Store, StoredFile

_MAGIC = b"WKWRUN01"
_FOOTER = struct.Struct("<8sQQI")  # magic, number of blocks, payload bytes, crc32 of the tables
FOOTER_NBYTES = _FOOTER.size


@dataclass(frozen=True, slots=True)
class RunTable:
    """Which blocks a run holds and how long each one is."""

    codes: npt.NDArray[np.uint64]
    """Morton codes of the blocks in their file, in stored order, shape (n,)."""
    sizes: npt.NDArray[np.int64]
    """Encoded length of each block [bytes], 0 for an all-zero block, shape (n,)."""
    starts: npt.NDArray[np.int64] | None = None
    """First byte of each block, shape (n,); by default they follow each other from byte 0 on."""

    @property
    def payload_nbytes(self) -> int:
        """Bytes of all blocks together."""
        return int(self.sizes.sum())


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive blocks of a file that are copied from one place."""

    run: int
    """Index of the run that holds the blocks, -1 for all-zero blocks."""
    offset: int
    """First byte in the payload of that run."""
    nbytes: int
    """Bytes to copy; for all-zero blocks 0."""
    num_blocks: int
    """Number of blocks."""


def format_run_tail(table: RunTable) -> bytes:
    """Write what follows the payload in a part file: codes, sizes, footer."""
    tables = table.codes.astype("<u8").tobytes() + table.sizes.astype("<u8").tobytes()
    return tables + _FOOTER.pack(_MAGIC, table.codes.size, table.payload_nbytes, zlib.crc32(tables))


def run_tail_nbytes(footer: bytes, file_nbytes: int, source: str) -> int:
    """Read from the footer of a part file how long its tail is."""
    if len(footer) < FOOTER_NBYTES:
        raise TruncatedError(f"{source}: a part file has at least {FOOTER_NBYTES} bytes, found {len(footer)}")
    magic, num_blocks, payload_nbytes, _ = _FOOTER.unpack(footer)
    if magic != _MAGIC:
        raise CorruptError(f"{source}: byte {file_nbytes - FOOTER_NBYTES}: expected the footer of a part file")
    tail = 16 * int(num_blocks) + FOOTER_NBYTES
    if payload_nbytes + tail != file_nbytes:
        raise TruncatedError(f"{source}: {file_nbytes} bytes, its footer promises {payload_nbytes + tail}")
    return tail


def parse_run_tail(raw: bytes, source: str) -> RunTable:
    """Read codes and sizes from the tail of a part file."""
    _, num_blocks, _, crc = _FOOTER.unpack(raw[-FOOTER_NBYTES:])
    if zlib.crc32(raw[:-FOOTER_NBYTES]) != crc:
        raise CorruptError(f"{source}: the tables of the part file are damaged")
    values = np.frombuffer(raw, "<u8", 2 * num_blocks)
    return RunTable(values[:num_blocks].astype(np.uint64), values[num_blocks:].astype(np.int64))


def join_order(runs: Sequence[RunTable], blocks_per_file: int) -> tuple[npt.NDArray[np.int64], list[Segment]]:
    """Plan how runs become one file.

    Examples
    --------
    >>> a = RunTable(np.array([0, 1], np.uint64), np.array([10, 20]))
    >>> b = RunTable(np.array([3], np.uint64), np.array([5]))
    >>> sizes, segments = join_order([a, b], 4)
    >>> sizes.tolist(), [(s.run, s.offset, s.nbytes) for s in segments]
    ([10, 20, 0, 5], [(0, 0, 30), (-1, 0, 0), (1, 0, 5)])
    """
    run_of = np.full(blocks_per_file, -1, np.int64)
    offset_of = np.zeros(blocks_per_file, np.int64)
    sizes = np.zeros(blocks_per_file, np.int64)
    for index, run in enumerate(runs):
        if run.codes.size and int(run.codes.max()) >= blocks_per_file:
            raise CorruptError(f"run {index} holds block {int(run.codes.max())} of a file with {blocks_per_file} blocks")
        if (run_of[run.codes] != -1).any() or np.unique(run.codes).size != run.codes.size:
            raise CorruptError(f"run {index} holds a block that another run holds too")
        run_of[run.codes] = index
        sizes[run.codes] = run.sizes
        offset_of[run.codes] = np.cumsum(run.sizes) - run.sizes if run.starts is None else run.starts
    run_of[sizes == 0] = -1
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


# ------------------------------------------------------------------------------------------------ part files and shards


@dataclass(frozen=True, slots=True)
class Run:
    """Encoded chunks that can be copied."""

    table: RunTable
    """Their codes and sizes, and where each begins."""
    file: StoredFile
    """Where they are stored."""


def open_run(file: StoredFile) -> Run:
    """Read the tables of a part file."""
    nbytes = file.nbytes or 0
    tail = run_tail_nbytes(file.read_end(FOOTER_NBYTES) or b"", nbytes, file.name)
    return Run(parse_run_tail(file.read_end(tail) or b"", file.name), file)


def close_part(output: FileBuffer, table: RunTable) -> tuple[int, int]:
    """Write the tail of a part file and publish it: its size and checksum."""
    output.append(np.frombuffer(format_run_tail(table), np.uint8))
    output.close().publish()
    return output.end, output.checksum


def is_whole_part(store: Store, name: str, nbytes: int, checksum: int) -> bool:
    """Check whether a part file exists and has all its bytes."""
    (state,) = store.states([name])
    if state is None or state.nbytes != nbytes:
        return False
    (data,) = store.read_whole([name], nbytes)
    return data is not None and zlib.crc32(data) == checksum


def copy_runs(shard: ShardFile, runs: Sequence[Run], num_codes: int) -> None:
    """Append the chunks of all runs to a shard, in the order of their codes."""
    sizes, segments = join_order([run.table for run in runs], num_codes)
    low = 0
    for is_stored, group in groupby(segments, lambda segment: segment.run >= 0):
        here = list(group)
        high = low + sum(segment.num_blocks for segment in here)
        if is_stored:
            _copy_segments(shard, runs, here, np.arange(low, high, dtype=np.uint64), sizes[low:high])
        low = high


def _copy_segments(shard: ShardFile, runs: Sequence[Run], segments: Sequence[Segment], codes: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
    """Append chunks whose codes follow each other, from several places, as far at a time as nothing comes between them in the shard."""
    left = [(runs[segment.run].file, segment.offset, segment.nbytes) for segment in reversed(segments)]
    while len(codes):
        count = shard.start_stretch(codes)
        wanted = int(sizes[:count].sum())
        while wanted:
            file, offset, nbytes = left.pop()
            now = min(nbytes, wanted)
            shard.buffer.copy(file, offset, now)
            wanted -= now
            if now < nbytes:
                left.append((file, offset + now, nbytes - now))
        shard.record(codes[:count], sizes[:count])
        codes, sizes = codes[count:], sizes[count:]


def publish_shard(shard: ShardFile, *, is_in_place: bool) -> None:
    """Write the tables of a shard and publish it."""
    head = shard.finish()
    file = shard.buffer.close()
    if head:
        file.write(head, 0)
    file.publish(flush_folder=is_in_place, keep_equal=True)
