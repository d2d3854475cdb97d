"""Reading a mag whose files hold one block each, so that opening one costs as much as reading it: many files in one compiled call.

A file that is not plainly right is left to the path for single files, which reads it or says what is wrong with it.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.formats.wkw.header import format_header
from wkwdask.formats.wkw.stored_file import mag_is_gone, read_buffer
from wkwdask.kernels.blocks.batch import compress_bound, decode_into
from wkwdask.kernels.blocks.layout import X, Z
from wkwdask.kernels.blocks.libc_names import FOLDER_FLAGS
from wkwdask.kernels.blocks.small_files import Found, Layout, is_available, read_files

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.stored_file import Reading
    from wkwdask.geometry.mag import Vec3

_SMALL_NBYTES = 512 << 10  # a larger file takes so long to decode that it may as well be opened by itself
_BATCH_NBYTES = 2 << 20  # stays in the cache between reading and decoding
_COMMON_NBYTES = 8  # of the header; the data offset follows


@lru_cache(maxsize=64)
def small_layout(header: WkwHeader) -> Layout | None:
    """Say what the files of a mag look like, None where they are not so small that they are best read together."""
    bound = compress_bound(header.block_nbytes) if header.is_compressed else header.block_nbytes
    most_nbytes = header.smallest_data_offset + bound
    if header.file_len > 1 or most_nbytes > _SMALL_NBYTES or not is_available():
        return None
    head = np.frombuffer(format_header(header)[:_COMMON_NBYTES], np.uint8)
    return Layout(head, header.is_compressed, header.block_len, header.block_nbytes, most_nbytes)


def read_small_files(
    header_path: str, header: WkwHeader, layout: Layout, files: tuple[range, range, range], reading: Reading, read_one: Callable[[Reading, Vec3], int]
) -> int:
    """Read all files of a box."""
    memory = read_buffer(max(_BATCH_NBYTES, layout.most_nbytes))
    nonzero, first, total = 0, 0, math.prod(len(r) for r in files)
    while first < total:
        found = _read_batch(header_path, files, first, layout, reading.topleft, memory)
        first = found.stop
        decoded, broken = _decode(memory, found.blocks, header, reading)
        nonzero += decoded
        if len(found.absent):
            reading.has_absent = True
            reading.zeros.add(found.absent, header.block_len)
        for x, y, z in broken + found.unusual.tolist():  # only now: each takes the memory for itself
            nonzero += read_one(reading, (x, y, z))
    return nonzero


def _read_batch(header_path: str, files: tuple[range, range, range], first: int, layout: Layout, origin: Vec3, memory: npt.NDArray[np.uint8]) -> Found:
    """Read files until the memory is full."""
    folder = os.path.dirname(header_path)
    try:
        mag = os.open(folder, FOLDER_FLAGS)
        try:
            found = read_files(mag, files, first, layout, origin, memory)
            if not len(found.absent) or os.path.samestat(os.fstat(mag), os.stat(folder)):
                return found
        finally:
            os.close(mag)
    except (FileNotFoundError, NotADirectoryError):
        raise mag_is_gone(header_path) from None
    # Another mag took the place of the one that was read, whose files may be vanishing by now: only a second look can tell.
    absent = (found.absent[:, X : Z + 1] + origin) // layout.block_len
    return found._replace(absent=found.absent[:0], unusual=np.concatenate([found.unusual, absent]))


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
