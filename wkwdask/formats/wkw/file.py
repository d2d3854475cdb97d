"""Blocks, the jump table and whole files in memory: the plain reference that the compiled batches
are tested against.

A block is an array (c, x, y, z); its bytes are in Fortran order, with the channel fastest
(webknossos-wrap README, "Raw blocks"). A jump table is parsed in slices, so that the memory needed
does not grow with the table. This module opens no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lz4.block
import numpy as np

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.formats.wkw.header import (
    HEADER_NBYTES,
    BlockType,
    WkwHeader,
    format_header,
    parse_header,
)
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.geometry import morton
from wkwdask.kernels.blocks import batch_python

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray, IntArray


# LZ4 block format: each further byte of a match length adds at most 255 bytes, so that no block
# decodes to more than 255 times its size. Checking this first keeps a broken length from allocating
# memory.
MAX_LZ4_RATIO = 255


def decode_block(raw: bytes, header: WkwHeader, source: str, block: int, offset: int) -> AnyArray:
    """Return the voxels (c, x, y, z) of a stored block; ``source``, ``block`` and ``offset`` name
    it in errors."""
    where = f"{source}: block {block} at byte {offset}"
    if not header.is_compressed:
        if len(raw) < header.block_nbytes:
            raise TruncatedError(f"{where}: {len(raw)} bytes, expected {header.block_nbytes}")
        voxels = raw[: header.block_nbytes]
    else:
        if header.block_nbytes > MAX_LZ4_RATIO * len(raw):
            raise CorruptError(
                f"{where}: {len(raw)} stored bytes cannot decode to {header.block_nbytes} bytes"
            )
        try:
            voxels = lz4.block.decompress(raw, uncompressed_size=header.block_nbytes)
        except lz4.block.LZ4BlockError as error:
            raise CorruptError(
                f"{where}: {len(raw)} bytes are not an LZ4 block of {header.block_nbytes} bytes "
                f"({error})"
            ) from None
        if len(voxels) != header.block_nbytes:
            raise CorruptError(
                f"{where}: {len(raw)} bytes decode to {len(voxels)} bytes, expected "
                f"{header.block_nbytes}"
            )
    edge = header.block_len
    # README, "Raw blocks": the index is X + Y * BLOCK_CLEN + Z * BLOCK_CLEN**2; the channels of one
    # voxel are adjacent.
    return np.frombuffer(voxels, header.dtype).reshape(
        (header.num_channels, edge, edge, edge), order="F"
    )


def encode_block(voxels: AnyArray, header: WkwHeader, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode the voxels (c, x, y, z) of one block."""
    raw = np.asarray(voxels, header.dtype).tobytes(order="F")
    if len(raw) != header.block_nbytes:
        raise ValueError(
            f"a block of this mag has {header.block_nbytes} bytes, got an array of shape "
            f"{voxels.shape}"
        )
    return encode_raw_block(raw, header.block_type, level)


def encode_raw_block(raw: bytes, block_type: BlockType, level: int) -> bytes:
    """Compress the raw bytes of one block."""
    return batch_python.encode(raw, block_type, level)


def decoded_nbytes(raw: bytes, max_nbytes: int) -> int:
    """Return the decoded size of an LZ4 block, or -1 if it is invalid or larger than
    ``max_nbytes``."""
    try:
        return len(lz4.block.decompress(raw, uncompressed_size=max_nbytes))
    except lz4.block.LZ4BlockError:
        return -1


# README, "LZ4 compressed blocks": entry n is the end of block n, and entry -1 is dataOffset, the
# last field of the header. Reading from the entry before the first block therefore yields all
# boundaries:
#
#     byte   8           16        24        32
#            dataOffset  end of 0  end of 1  ...  end of N - 1
#            start of 0  start of 1  ...
ENTRY_NBYTES = 8


def table_range(first: int, count: int) -> tuple[int, int]:
    """Return offset and size of the bytes that :func:`parse_jump_table` needs for ``count`` blocks
    starting at ``first``."""
    return HEADER_NBYTES + ENTRY_NBYTES * (first - 1), ENTRY_NBYTES * (count + 1)


def parse_jump_table(
    raw: bytes, header: WkwHeader, first: int, count: int, file_nbytes: int, source: str
) -> IntArray:
    """Parse and check the boundaries of consecutive blocks in Morton order, shape (count + 1,)."""
    offset, nbytes = table_range(first, count)
    if len(raw) < nbytes:
        raise TruncatedError(
            f"{source}: jump table ends at byte {offset + len(raw)}, expected "
            f"{header.blocks_per_file} entries up to byte {header.smallest_data_offset}"
        )
    bounds = np.frombuffer(raw, "<u8", count + 1)
    if bounds[0] < header.smallest_data_offset:
        raise CorruptError(
            f"{source}: byte {offset}: block {first} starts at byte {bounds[0]}, inside the header "
            "and jump table"
        )
    decreasing = np.flatnonzero(bounds[1:] < bounds[:-1])
    if decreasing.size:
        at = int(decreasing[0])
        raise CorruptError(
            f"{source}: byte {offset + ENTRY_NBYTES * (at + 1)}: "
            f"jump table decreases: block {first + at} starts at byte {bounds[at]} and ends at "
            f"byte {bounds[at + 1]}"
        )
    beyond = np.flatnonzero(bounds > file_nbytes)
    if beyond.size:
        at = int(beyond[0])
        raise TruncatedError(
            f"{source}: byte {offset + ENTRY_NBYTES * at}: block {first + max(at - 1, 0)} ends at "
            f"byte {bounds[at]}, but the file has {file_nbytes} bytes"
        )
    return bounds.astype(np.int64)


def raw_block_bounds(
    header: WkwHeader, first: int, count: int, file_nbytes: int, source: str
) -> IntArray:
    """Return the boundaries of consecutive blocks of a raw file, in the form of
    :func:`parse_jump_table`."""
    end = header.data_offset + (first + count) * header.block_nbytes
    if file_nbytes < end:
        whole = max(0, file_nbytes - header.data_offset) // header.block_nbytes
        raise TruncatedError(
            f"{source}: block {whole} at byte {header.data_offset + whole * header.block_nbytes}: "
            f"the file has {file_nbytes} bytes, expected {end}: raw blocks of "
            f"{header.block_nbytes} bytes from byte {header.data_offset}"
        )
    return (
        header.data_offset
        + np.arange(first, first + count + 1, dtype=np.int64) * header.block_nbytes
    )


def format_jump_table(header: WkwHeader, sizes: IntArray) -> bytes:
    """Format the jump table of a file whose blocks are stored without gaps."""
    if sizes.shape != (header.blocks_per_file,):
        raise ValueError(
            f"a file of this mag has {header.blocks_per_file} blocks, got sizes of shape "
            f"{sizes.shape}"
        )
    return (
        (np.cumsum(sizes, dtype=np.uint64) + np.uint64(header.data_offset)).astype("<u8").tobytes()
    )


def format_file_head(header: WkwHeader, sizes: IntArray) -> bytes:
    """Format all bytes before the first block: the header and, for compressed files, the jump
    table."""
    header = header.for_data_file()
    head = format_header(header)
    return head + format_jump_table(header, sizes) if header.is_compressed else head


def block_bounds(raw: bytes, header: WkwHeader, source: str) -> IntArray:
    """Return the boundaries of all blocks of a file."""
    count = header.blocks_per_file
    if header.is_compressed:
        offset, nbytes = table_range(0, count)
        return parse_jump_table(raw[offset : offset + nbytes], header, 0, count, len(raw), source)
    return raw_block_bounds(header, 0, count, len(raw), source)


def decode_file(raw: bytes, source: str = "<bytes>") -> AnyArray:
    """Return the voxels (c, x, y, z) of a whole file."""
    header = parse_header(raw[:HEADER_NBYTES], source, is_data_file=True)
    bounds = block_bounds(raw, header, source)
    blocks = [
        decode_block(raw[a:b], header, source, n, a)
        for n, (a, b) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    ]
    edge, step = header.file_len_vx, header.block_len
    out = np.empty((header.num_channels, edge, edge, edge), header.dtype, order="F")
    for (x, y, z), block in zip(
        (morton.decode(np.arange(len(blocks))) * step).tolist(), blocks, strict=True
    ):
        out[:, x : x + step, y : y + step, z : z + step] = block
    return out
