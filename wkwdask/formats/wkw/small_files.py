"""Reading a mag whose files hold one block each: many files are read into one memory and decoded in one call.

A file that is not plainly right is left to the path for single files, which reads it or reports what is wrong with it.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.formats.wkw.block import MAX_LZ4_RATIO
from wkwdask.formats.wkw.header import HEADER_NBYTES, BlockType, format_header
from wkwdask.formats.wkw.stored_file import mag_is_gone, read_buffer
from wkwdask.kernels.blocks.batch import compress_bound, decode_into
from wkwdask.kernels.blocks.layout import OFFSET, SIZE, START, X, Z
from wkwdask.store import files
from wkwdask.store.local import ABSENT
from wkwdask.store.paths import dirname

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.stored_file import Reading
    from wkwdask.geometry.mag import Vec3

_SMALL_NBYTES = 512 << 10  # a larger file takes so long to decode that it may as well be opened by itself
_BATCH_NBYTES = 2 << 20  # stays in the cache between reading and decoding
_MOST_FILES = 4096  # of one batch, absent ones included
_COMMON_NBYTES, _BLOCK_TYPE_AT = 8, 5  # what all headers of a mag begin with, but for the two compressed block types
_LZ4_TYPES = (BlockType.LZ4, BlockType.LZ4HC)


def has_small_files(header: WkwHeader) -> bool:
    """Return whether the files of a mag are so small that they are best read together."""
    return header.file_len == 1 and _most_nbytes(header) <= _SMALL_NBYTES


def _most_nbytes(header: WkwHeader) -> int:
    return header.smallest_data_offset + (compress_bound(header.block_nbytes) if header.is_compressed else header.block_nbytes)


def read_small_files(header_path: str, header: WkwHeader, grid: tuple[range, range, range], reading: Reading, read_one: Callable[[Reading, Vec3], int]) -> int:
    """Read all files of a box."""
    most_nbytes = _most_nbytes(header)
    memory = read_buffer(max(_BATCH_NBYTES, most_nbytes))
    indices = ((x, y, z) for z in grid[2] for y in grid[1] for x in grid[0])
    nonzero, left = 0, math.prod(map(len, grid))
    while left:
        found = _read_batch(header_path, indices, most_nbytes, memory)
        left -= len(found)
        index, start, size = np.split(np.array(found, np.int64), (3, 4), axis=1)
        table = np.zeros((len(index), Z + 1), np.int64)
        table[:, X : Z + 1] = index * header.block_len - reading.topleft
        absent, sound = size[:, 0] == ABSENT, _find_blocks(table, start, size, header, memory)
        decoded, broken = _decode(memory, table[sound], header, reading)
        nonzero += decoded
        if absent.any():
            reading.has_absent = True
            reading.absent.update({(y, z): f"{dirname(header_path)}/z{z}/y{y}/x{x}.wkw" for x, y, z in index[absent].tolist()})
            reading.zeros.add(table[absent], header.block_len)
        for x, y, z in broken + index[~sound & ~absent].tolist():  # only now: each takes the memory for itself
            nonzero += read_one(reading, (x, y, z))
    return nonzero


def _read_batch(header_path: str, indices: Iterator[Vec3], most_nbytes: int, memory: npt.NDArray[np.uint8]) -> list[tuple[int, int, int, int, int]]:
    """Read files until the memory is full; gives index, place in the memory and size of each."""
    batch: list[Vec3] = []

    def names() -> Iterator[str]:
        for x, y, z in itertools.islice(indices, _MOST_FILES):
            batch.append((x, y, z))
            yield f"z{z}/y{y}/x{x}.wkw"

    try:
        found = files.read_small(dirname(header_path), names(), most_nbytes, memory.data)
    except (FileNotFoundError, NotADirectoryError):
        raise mag_is_gone(header_path) from None
    return [(*index, *place) for index, place in zip(batch, found, strict=True)]


def _find_blocks(
    table: npt.NDArray[np.int64], start: npt.NDArray[np.int64], size: npt.NDArray[np.int64], header: WkwHeader, memory: npt.NDArray[np.uint8]
) -> npt.NDArray[np.bool_]:
    """Fill in where the block of each file lies; gives which files have a header like the mag's and a whole block."""
    table_end = HEADER_NBYTES + 8 * header.is_compressed
    heads = memory[np.minimum(start + np.arange(HEADER_NBYTES + 8), len(memory) - 1)]
    is_same = heads[:, :_COMMON_NBYTES] == np.frombuffer(format_header(header)[:_COMMON_NBYTES], np.uint8)
    if header.is_compressed:
        is_same[:, _BLOCK_TYPE_AT] = np.isin(heads[:, _BLOCK_TYPE_AT], _LZ4_TYPES)
    offset, end = heads[:, _COMMON_NBYTES:].copy().view("<i8").T
    end = end if header.is_compressed else offset + header.block_nbytes
    table[:, OFFSET], table[:, SIZE], table[:, START] = offset, end - offset, start[:, 0] + offset
    is_inside = (size[:, 0] >= table_end) & (offset >= table_end) & (offset <= end) & (end <= size[:, 0])
    sound: npt.NDArray[np.bool_] = is_same.all(axis=1) & is_inside & (table[:, SIZE] >= header.block_nbytes / MAX_LZ4_RATIO)
    return sound


def _decode(memory: npt.NDArray[np.uint8], table: npt.NDArray[np.int64], header: WkwHeader, reading: Reading) -> tuple[int, list[list[int]]]:
    """Decode all blocks; gives how many are not all-zero, and the indices of the files whose block is broken."""
    nonzero, broken = 0, []
    while len(table):
        decoded = decode_into(
            memory, table, reading.out, block_len=header.block_len, num_channels=header.num_channels,
            first_channel=reading.first_channel, block_type=header.block_type, fill_zeros=reading.zeros.at_once,
        )  # fmt: skip
        stop = len(table) if decoded.broken < 0 else decoded.broken
        reading.zeros.decoded(table[:stop], header.block_len, decoded.nonzero)
        nonzero += decoded.nonzero
        if decoded.broken >= 0:
            broken.append(((table[stop, X : Z + 1] + reading.topleft) // header.block_len).tolist())
        table = table[stop + 1 :]
    return nonzero, broken
