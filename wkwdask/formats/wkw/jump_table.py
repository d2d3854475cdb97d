"""The jump table of a compressed file: where each block ends.

Slices of the table are parsed and checked one by one, so that a table of any size needs memory for one slice only. Opens nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.formats.wkw.header import HEADER_NBYTES

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.formats.wkw.header import WkwHeader

ENTRY_NBYTES = 8


def slice_range(first: int, count: int) -> tuple[int, int]:
    """Give the bytes of the file that :func:`parse_jump_table` needs for some blocks."""
    return HEADER_NBYTES + ENTRY_NBYTES * (first - 1), ENTRY_NBYTES * (count + 1)


def parse_jump_table(raw: bytes, header: WkwHeader, first: int, count: int, file_nbytes: int, source: str) -> npt.NDArray[np.int64]:
    """Read and check the boundaries of consecutive blocks.

    Notes
    -----
    webknossos-wrap README, "LZ4 compressed blocks".
    """
    offset, nbytes = slice_range(first, count)
    if len(raw) < nbytes:
        raise TruncatedError(
            f"{source}: jump table ends at byte {offset + len(raw)}, expected {header.blocks_per_file} entries up to byte {header.smallest_data_offset}"
        )
    bounds = np.frombuffer(raw, "<u8", count + 1)
    if bounds[0] < header.smallest_data_offset:
        raise CorruptError(f"{source}: byte {offset}: block {first} starts at byte {bounds[0]}, inside the header and jump table")
    falling = np.flatnonzero(bounds[1:] < bounds[:-1])
    if falling.size:
        at = int(falling[0])
        raise CorruptError(
            f"{source}: byte {offset + ENTRY_NBYTES * (at + 1)}: "
            f"jump table falls: block {first + at} starts at byte {bounds[at]} and ends at byte {bounds[at + 1]}"
        )
    beyond = np.flatnonzero(bounds > file_nbytes)
    if beyond.size:
        at = int(beyond[0])
        raise TruncatedError(
            f"{source}: byte {offset + ENTRY_NBYTES * at}: block {first + max(at - 1, 0)} ends at byte {bounds[at]}, but the file has {file_nbytes} bytes"
        )
    return bounds.astype(np.int64)


def raw_block_bounds(header: WkwHeader, first: int, count: int, file_nbytes: int, source: str) -> npt.NDArray[np.int64]:
    """Give the boundaries of consecutive blocks in a raw file, in the form of :func:`parse_jump_table`."""
    end = header.data_offset + (first + count) * header.block_nbytes
    if file_nbytes < end:
        whole = max(0, file_nbytes - header.data_offset) // header.block_nbytes
        raise TruncatedError(
            f"{source}: block {whole} at byte {header.data_offset + whole * header.block_nbytes}: "
            f"the file has {file_nbytes} bytes, expected {end}: raw blocks of {header.block_nbytes} bytes from byte {header.data_offset}"
        )
    return header.data_offset + np.arange(first, first + count + 1, dtype=np.int64) * header.block_nbytes


def format_jump_table(header: WkwHeader, sizes: npt.NDArray[np.int64]) -> bytes:
    """Write the table of a file whose blocks follow each other without gaps."""
    if sizes.shape != (header.blocks_per_file,):
        raise ValueError(f"a file of this mag has {header.blocks_per_file} blocks, got sizes of shape {sizes.shape}")
    return (np.cumsum(sizes, dtype=np.uint64) + np.uint64(header.data_offset)).astype("<u8").tobytes()
